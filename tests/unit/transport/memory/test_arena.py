"""Allocations never overlap, are reused once every view is dropped, and empty regions return to the system."""

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

from paceline.transport.memory.arena import KEPT_S, REGION_NBYTES, Arena

MIB = 1 << 20


def address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def shared_files() -> set[int]:
    """The shared files that this process has open, by inode."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "memfd:paceline-blocks" in os.readlink(f"/proc/self/fd/{fd}"):
                found.add(os.stat(int(fd)).st_ino)
    return found


@pytest.mark.parametrize("share", [True, False])
def test_allocations_never_overlap_and_are_zero(share: bool) -> None:
    rng = random.Random(5)
    arena = Arena(share=share)
    taken: dict[int, memoryview] = {}
    for number in range(3000):
        if taken and rng.random() < 0.5:
            taken.pop(rng.choice(list(taken)))
        else:
            view = arena.allocate(rng.choice((1, 64, 65, 1000, 5000, MIB // 4)))
            assert view[0] == view[-1] == 0
            view[0] = view[-1] = number % 255 + 1
            taken[number] = view
        if number % 100 == 0:
            spans = sorted((address_of(view), view.nbytes) for view in taken.values())
            assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
            assert all(view[-1] == n % 255 + 1 for n, view in taken.items())
    taken.clear()
    del view
    assert arena.stats.in_use == 0
    assert arena.allocate(60 * MIB).nbytes == 60 * MIB  # the gaps were joined
    assert arena.stats.regions <= 2
    arena.close()


def test_slices_and_tensors_keep_an_allocation_in_use() -> None:
    arena = Arena(share=True)
    view = arena.allocate(MIB)
    where = address_of(view)
    tensor = torch.frombuffer(view[4096:8192], dtype=torch.float32)
    part = view[100:200].cast("B")
    del view
    assert arena.stats.in_use == MIB
    assert address_of(arena.allocate(MIB)) != where
    del part
    assert arena.stats.in_use == MIB
    del tensor
    gc.collect()
    assert arena.stats.in_use == 0
    assert address_of(arena.allocate(MIB)) == where
    arena.close()


def test_all_empty_regions_but_one_return_to_the_system_after_a_while() -> None:
    retired: list[int] = []
    now = [100.0]
    arena = Arena(share=True, on_retired=retired.append, now=lambda: now[0])
    before = len(shared_files())
    taken = [arena.allocate(REGION_NBYTES - 64) for _ in range(4)]
    taken.append(arena.allocate(3 * REGION_NBYTES))
    assert arena.stats.regions == 5
    assert arena.stats.reserved == 7 * REGION_NBYTES
    assert len(shared_files()) == before + 5
    taken.clear()
    assert arena.stats.in_use == 0
    now[0] += KEPT_S - 1
    assert arena.stats.regions == 5  # they are filled again in the next step, without page faults
    taken.append(arena.allocate(3 * REGION_NBYTES))
    assert arena.stats.regions == 5
    now[0] += 1
    assert arena.stats.regions == 2
    taken.clear()
    assert arena.stats.in_use == 0
    now[0] += KEPT_S
    assert arena.stats.regions == 1
    assert len(retired) == 4
    assert len(shared_files()) == before + 1
    arena.close()
    assert len(shared_files()) == before


def test_an_arena_frees_what_it_can_before_it_grows() -> None:
    held: list[memoryview] = []
    arena = Arena(share=False, before_growing=held.clear)
    held.append(arena.allocate(REGION_NBYTES))
    where = address_of(held[0])
    assert address_of(arena.allocate(REGION_NBYTES)) == where
    assert arena.stats.regions == 1


def test_only_frames_in_shared_regions_are_located() -> None:
    shared, private = Arena(share=True), Arena(share=False)
    taken = [shared.allocate(REGION_NBYTES) for _ in range(3)]
    strangers = [memoryview(bytearray(100)), memoryview(b"read-only"), memoryview(bytearray()), private.allocate(100)]
    tensor = torch.frombuffer(taken[1][64:128], dtype=torch.float32).view(torch.uint8).numpy().data
    inside = [taken[0], taken[0][1000:1001], taken[1], tensor, taken[2], taken[0][-1:]]
    mixed = list(itertools.chain.from_iterable(itertools.product(inside, strangers)))
    for frame, found in zip(mixed, shared.locate(mixed), strict=True):
        if any(frame is stranger for stranger in strangers):
            assert found is None
        else:
            assert found is not None
            region, offset = found
            assert region.address + offset == address_of(frame)
            assert offset + frame.nbytes <= region.nbytes
    assert len({region.number for region, _ in filter(None, shared.locate(taken))}) == 3
    assert private.locate([private.allocate(100)]) == [None]
    shared.close()


def test_an_arena_uses_private_memory_and_logs_it_once_if_the_system_cannot_share_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(name: str, nbytes: int) -> tuple[int, mmap.mmap]:
        raise OSError(38, "Function not implemented")

    arena = Arena(share=True, create=refuse)
    with caplog.at_level(logging.WARNING):
        taken = [arena.allocate(REGION_NBYTES) for _ in range(3)]
    assert arena.locate(taken) == [None] * 3
    assert not arena.shared
    assert [record.getMessage() for record in caplog.records] == [
        "memory cannot be shared ([Errno 38] Function not implemented): blocks are sent as bytes from now on"
    ]
