"""Where blocks live that other processes read: rooms in large segments, taken again when nobody holds them.

A room is given back by dropping it: its memoryview, every slice of it and every tensor over it. Fresh memory costs
more than the copy into it (page faults), so what was given back is used first.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import logging
import mmap
import operator
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.transport.base import Frame
from paceline.transport.memory import shared_files

logger = logging.getLogger(__name__)

SEGMENT_NBYTES = 64 << 20
ALIGNMENT = 64

_numbers = itertools.count(1)
_char = ctypes.c_char


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """What an arena holds, in bytes. What was never touched takes no memory, so `reserved` may be far more."""

    in_use: int
    reserved: int
    segments: int


class _Room(weakref.ref[ctypes.Array[ctypes.c_char]]):
    """A room in use: dead when every view of it is gone."""

    __slots__ = ("nbytes", "offset", "segment")
    segment: Segment
    offset: int
    nbytes: int


class Segment:
    """One mapping and the rooms in it. Private segments have no descriptor (-1)."""

    def __init__(self, fd: int, mapped: mmap.mmap) -> None:
        self.number = next(_numbers)
        self.fd = fd
        self.mapped = mapped
        self.nbytes = len(mapped)
        self.address = ctypes.addressof(_char.from_buffer(mapped))
        self.rooms: dict[int, _Room] = {}
        self._free = [(0, self.nbytes)]
        self._fresh = 0

    def take(self, nbytes: int) -> tuple[int, bool] | None:
        """The offset of the first gap of `nbytes`, and whether it was used before; None when there is none."""
        for position, (offset, free) in enumerate(self._free):
            if free >= nbytes:
                if free == nbytes:
                    del self._free[position]
                else:
                    self._free[position] = (offset + nbytes, free - nbytes)
                used = offset < self._fresh
                self._fresh = max(self._fresh, offset + nbytes)
                return offset, used
        return None

    def give_back(self, room: _Room) -> None:
        """Join the room to the gaps around it."""
        del self.rooms[room.offset]
        offset, nbytes = room.offset, room.nbytes
        at = bisect.bisect(self._free, (offset, 0))
        if at < len(self._free) and self._free[at][0] == offset + nbytes:
            nbytes += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == offset:
            at -= 1
            before = self._free.pop(at)
            offset, nbytes = before[0], before[1] + nbytes
        self._free.insert(at, (offset, nbytes))

    def close(self) -> None:
        """Drop the descriptor; the mapping goes with the last view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


_address = operator.attrgetter("address")
Create = Callable[[str, int], tuple[int, mmap.mmap]]


class Arena:
    """A `Memory`: shared with the processes of this host if `share`, and otherwise private.

    `before_growing` is called when no gap is large enough: it may let go of rooms. `on_retired` hears the number of
    each segment that is given back to the system.
    """

    def __init__(self, *, share: bool, create: Create = shared_files.create) -> None:
        self.before_growing: Callable[[], None] = lambda: None
        self.on_retired: Callable[[int], None] = lambda number: None
        self._share = share
        self._create = create
        self._segments: list[Segment] = []  # the oldest first: they are filled first, so that later ones empty
        self._by_address: list[Segment] = []
        self._freed: deque[_Room] = deque()
        self._in_use = 0

    @property
    def shared(self) -> bool:
        """Whether rooms made from now on can be read by other processes."""
        return self._share

    def stop_sharing(self, why: OSError) -> None:
        """Rooms made from now on are private."""
        if self._share:
            self._share = False
            logger.warning("memory cannot be shared (%s): blocks travel as bytes from here on", why)

    def allocate(self, nbytes: int) -> Frame:
        """As `Memory.allocate`."""
        if nbytes < 1:
            if nbytes < 0:
                raise ValueError(f"a room of {nbytes} bytes")
            return memoryview(bytearray())
        view, used = self._room(nbytes)
        if used:
            ctypes.memset(ctypes.addressof(_char.from_buffer(view)), 0, nbytes)
        return view

    def allocate_raw(self, nbytes: int) -> Frame:
        """A room of at least one byte that holds whatever was there before."""
        return self._room(nbytes)[0]

    def _room(self, nbytes: int) -> tuple[Frame, bool]:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._take_back()
        found = self._find(size)
        if found is None:
            self.before_growing()
            self._take_back()
            found = self._find(size) or self._grow(size)
        segment, offset, used = found
        holder = (_char * nbytes).from_buffer(segment.mapped, offset)
        room = _Room(holder, self._freed.append)
        room.segment, room.offset, room.nbytes = segment, offset, size
        segment.rooms[offset] = room
        self._in_use += size
        return memoryview(holder).cast("B"), used

    def locate(self, frames: Sequence[Frame]) -> list[tuple[Segment, int] | None]:
        """The shared segment that each frame lies in, and where; None for one in any other memory."""
        found: list[tuple[Segment, int] | None] = []
        addressof, from_buffer = ctypes.addressof, _char.from_buffer
        segment, first, last = None, 1, 0
        for frame in frames:
            if frame.readonly or not frame.nbytes:
                found.append(None)
                continue
            address = addressof(from_buffer(frame))
            if not first <= address <= last:  # most often they lie together
                there = self._segment_at(address)
                if there is None:
                    found.append(None)
                    continue
                segment, first, last = there, there.address, there.address + there.nbytes - 1
            assert segment is not None
            found.append((segment, address - first))
        return found

    def _segment_at(self, address: int) -> Segment | None:
        at = bisect.bisect_right(self._by_address, address, key=_address) - 1
        if at < 0:
            return None
        segment = self._by_address[at]
        return segment if address - segment.address < segment.nbytes and segment.fd >= 0 else None

    @property
    def stats(self) -> MemoryStats:
        """What is in use now."""
        self._take_back()
        return MemoryStats(self._in_use, sum(s.nbytes for s in self._segments), len(self._segments))

    def close(self) -> None:
        """Give the segments back to the system, as far as nobody holds rooms in them. Idempotent."""
        for segment in self._segments:
            segment.close()
            segment.rooms.clear()
        self._segments.clear()
        self._by_address.clear()
        self._freed.clear()
        self._in_use = 0

    # ------------------------------------------------------------ inside

    def _find(self, size: int) -> tuple[Segment, int, bool] | None:
        for segment in self._segments:
            taken = segment.take(size)
            if taken is not None:
                return segment, *taken
        return None

    def _grow(self, size: int) -> tuple[Segment, int, bool]:
        nbytes = max(SEGMENT_NBYTES, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        fd, mapped = -1, None
        if self._share:
            try:
                fd, mapped = self._create("blocks", nbytes)
            except OSError as error:
                self.stop_sharing(error)
        if mapped is None:
            mapped = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        segment = Segment(fd, mapped)
        self._segments.append(segment)
        bisect.insort(self._by_address, segment, key=_address)
        taken = segment.take(size)
        assert taken is not None
        return segment, *taken

    def _take_back(self) -> None:
        """Use again what was dropped; of the segments that are wholly free, keep one."""
        emptied = False
        while self._freed:
            room = self._freed.popleft()
            room.segment.give_back(room)
            self._in_use -= room.nbytes
            emptied = emptied or not room.segment.rooms
        if emptied:
            for segment in [segment for segment in self._segments if not segment.rooms][1:]:
                self._segments.remove(segment)
                self._by_address.remove(segment)
                segment.close()
                self.on_retired(segment.number)
