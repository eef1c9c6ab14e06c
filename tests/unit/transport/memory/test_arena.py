"""Rooms: never two in one place, used again when nobody holds them, given back to the system when all are free."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import logging
import mmap
import os
import random

import pytest
import torch

from paceline.transport.memory.arena import SEGMENT_NBYTES, Arena

MIB = 1 << 20


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def segment_files() -> set[int]:
    """The segments that this process has open, by inode."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "memfd:paceline-blocks" in os.readlink(f"/proc/self/fd/{fd}"):
                found.add(os.stat(int(fd)).st_ino)
    return found


@pytest.mark.parametrize("share", [True, False])
def test_rooms_never_overlap_and_are_zero(share: bool) -> None:
    rng = random.Random(5)
    arena = Arena(share=share)
    rooms: dict[int, memoryview] = {}
    for number in range(3000):
        if rooms and rng.random() < 0.5:
            rooms.pop(rng.choice(list(rooms)))
        else:
            room = arena.allocate(rng.choice((1, 64, 65, 1000, 5000, MIB // 4)))
            assert room[0] == room[-1] == 0
            room[0] = room[-1] = number % 255 + 1
            rooms[number] = room
        if number % 100 == 0:
            spans = sorted((address_of(room), room.nbytes) for room in rooms.values())
            assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
            assert all(room[-1] == n % 255 + 1 for n, room in rooms.items())
    rooms.clear()
    del room
    assert arena.stats.in_use == 0
    assert arena.allocate(60 * MIB).nbytes == 60 * MIB  # the gaps have become one
    assert arena.stats.segments <= 2
    arena.close()


def test_a_room_is_held_by_slices_and_tensors() -> None:
    arena = Arena(share=True)
    room = arena.allocate(MIB)
    where = address_of(room)
    tensor = torch.frombuffer(room[4096:8192], dtype=torch.float32)
    part = room[100:200].cast("B")
    del room
    assert arena.stats.in_use == MIB
    assert address_of(arena.allocate(MIB)) != where
    del part
    assert arena.stats.in_use == MIB
    del tensor
    gc.collect()
    assert arena.stats.in_use == 0
    assert address_of(arena.allocate(MIB)) == where
    arena.close()


def test_segments_that_are_wholly_free_go_back_but_one() -> None:
    arena = Arena(share=True)
    retired: list[int] = []
    arena.on_retired = retired.append
    before = len(segment_files())
    rooms = [arena.allocate(SEGMENT_NBYTES - 64) for _ in range(4)]
    rooms.append(arena.allocate(3 * SEGMENT_NBYTES))
    assert arena.stats.segments == 5
    assert arena.stats.reserved == 7 * SEGMENT_NBYTES
    assert len(segment_files()) == before + 5
    rooms.clear()
    assert arena.stats.segments == 1
    assert len(retired) == 4
    assert len(segment_files()) == before + 1
    arena.close()
    assert len(segment_files()) == before


def test_before_it_grows_an_arena_asks_for_rooms_that_could_go() -> None:
    arena = Arena(share=False)
    held = [arena.allocate(SEGMENT_NBYTES)]
    where = address_of(held[0])
    arena.before_growing = held.clear
    assert address_of(arena.allocate(SEGMENT_NBYTES)) == where
    assert arena.stats.segments == 1


def test_frames_are_located_in_shared_segments_only() -> None:
    shared, private = Arena(share=True), Arena(share=False)
    rooms = [shared.allocate(SEGMENT_NBYTES) for _ in range(3)]
    strangers = [memoryview(bytearray(100)), memoryview(b"read-only"), memoryview(bytearray()), private.allocate(100)]
    tensor = torch.frombuffer(rooms[1][64:128], dtype=torch.float32).view(torch.uint8).numpy().data
    inside = [rooms[0], rooms[0][1000:1001], rooms[1], tensor, rooms[2], rooms[0][-1:]]
    mixed = list(itertools.chain.from_iterable(itertools.product(inside, strangers)))
    for frame, found in zip(mixed, shared.locate(mixed), strict=True):
        if any(frame is stranger for stranger in strangers):
            assert found is None
        else:
            assert found is not None
            segment, offset = found
            assert segment.address + offset == address_of(frame)
            assert offset + frame.nbytes <= segment.nbytes
    assert len({segment.number for segment, _ in filter(None, shared.locate(rooms))}) == 3
    assert private.locate([private.allocate(100)]) == [None]
    shared.close()


def test_where_memory_cannot_be_shared_it_is_private_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(name: str, nbytes: int) -> tuple[int, mmap.mmap]:
        raise OSError(38, "Function not implemented")

    arena = Arena(share=True, create=refuse)
    with caplog.at_level(logging.WARNING):
        rooms = [arena.allocate(SEGMENT_NBYTES) for _ in range(3)]
    assert arena.locate(rooms) == [None] * 3
    assert not arena.shared
    assert [record.getMessage() for record in caplog.records] == [
        "memory cannot be shared ([Errno 38] Function not implemented): blocks travel as bytes from here on"
    ]
