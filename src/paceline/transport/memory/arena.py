"""Memory for blocks that peers read in place: allocations in large regions, reused once they are free.

An allocation is freed when its memoryview, every slice of it and every tensor over it are dropped. The page faults of
fresh memory cost more than a copy into it, so freed memory is reused first, and an empty region is kept for a while: a
server that receives gradients over a network fills and empties its regions once in every step.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import itertools
import logging
import mmap
import operator
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.transport.base import Frame
from paceline.transport.memory import shared_files

logger = logging.getLogger(__name__)

REGION_NBYTES = 64 << 20
ALIGNMENT = 64
KEPT_S = 5.0
"""Return a region to the system once it was empty for this many seconds. The first empty one is always kept."""

_numbers = itertools.count(1)
_char = ctypes.c_char


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes in use, bytes mapped, and the number of regions. Mapped pages that were never touched take no memory."""

    in_use: int
    reserved: int
    regions: int


class _Allocation(weakref.ref[ctypes.Array[ctypes.c_char]]):
    """A weak reference to an allocation in use. It is dead once every view of the allocation is gone."""

    __slots__ = ("nbytes", "offset", "region")
    region: Region
    offset: int
    nbytes: int


class Region:
    """One mapping and its allocations. A shared region is a shared file; a private one has no descriptor (-1)."""

    def __init__(self, fd: int, mapped: mmap.mmap) -> None:
        self.number = next(_numbers)
        self.fd = fd
        self.mapped = mapped
        self.nbytes = len(mapped)
        self.address = ctypes.addressof(_char.from_buffer(mapped))
        self.allocations: dict[int, _Allocation] = {}
        self._gaps = [(0, self.nbytes)]
        self._fresh = 0

    def take(self, nbytes: int) -> tuple[int, bool] | None:
        """Allocate `nbytes` in the first gap that is large enough; None if there is no such gap.

        Returns the offset, and whether the memory was used before, so that it may not be zero.
        """
        for position, (offset, free) in enumerate(self._gaps):
            if free >= nbytes:
                if free == nbytes:
                    del self._gaps[position]
                else:
                    self._gaps[position] = (offset + nbytes, free - nbytes)
                used = offset < self._fresh
                self._fresh = max(self._fresh, offset + nbytes)
                return offset, used
        return None

    def free(self, allocation: _Allocation) -> None:
        """Free `allocation` and merge it with the gaps before and after it."""
        del self.allocations[allocation.offset]
        offset, nbytes = allocation.offset, allocation.nbytes
        at = bisect.bisect(self._gaps, (offset, 0))
        if at < len(self._gaps) and self._gaps[at][0] == offset + nbytes:
            nbytes += self._gaps.pop(at)[1]
        if at and sum(self._gaps[at - 1]) == offset:
            at -= 1
            before = self._gaps.pop(at)
            offset, nbytes = before[0], before[1] + nbytes
        self._gaps.insert(at, (offset, nbytes))

    def close(self) -> None:
        """Close the descriptor. The mapping stays until the last view of it is dropped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


_address = operator.attrgetter("address")
Create = Callable[[str, int], tuple[int, mmap.mmap]]


class Arena:
    """A `Memory`: shared with the processes of this host if `share`, otherwise private.

    The arena calls `before_growing`, which may free allocations, when no gap is large enough, and `on_retired` with the
    number of each region that it returns to the system.
    """

    def __init__(
        self,
        *,
        share: bool,
        before_growing: Callable[[], None] = lambda: None,
        on_retired: Callable[[int], None] = lambda number: None,
        create: Create = shared_files.create,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._before_growing = before_growing
        self._on_retired = on_retired
        self._share = share
        self._create = create
        self._regions: list[Region] = []  # oldest first: the oldest are filled first, so that newer ones become empty
        self._by_address: list[Region] = []
        self._freed: deque[_Allocation] = deque()
        self._empty: dict[Region, float] = {}  # since when
        self._now = now
        self._in_use = 0

    @property
    def shared(self) -> bool:
        """Whether peers can map the regions that the arena will make."""
        return self._share

    def stop_sharing(self, why: OSError) -> None:
        """Make all further regions private, because sharing memory failed with the error `why`."""
        if self._share:
            self._share = False
            logger.warning("memory cannot be shared (%s): blocks are sent as bytes from now on", why)

    def allocate(self, nbytes: int) -> Frame:
        """See `Memory.allocate`."""
        if nbytes < 1:
            if nbytes < 0:
                raise ValueError(f"the size of an allocation must be 0 or more bytes, not {nbytes}")
            return memoryview(bytearray())
        view, used = self._allocate(nbytes)
        if used:
            ctypes.memset(ctypes.addressof(_char.from_buffer(view)), 0, nbytes)
        return view

    def allocate_raw(self, nbytes: int) -> Frame:
        """Allocate at least one byte as `allocate` does, but without clearing: the bytes may hold earlier content."""
        return self._allocate(nbytes)[0]

    def _allocate(self, nbytes: int) -> tuple[Frame, bool]:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        self._reclaim()
        found = self._find(size)
        if found is None:
            self._before_growing()
            self._reclaim()
            found = self._find(size) or self._grow(size)
        region, offset, used = found
        holder = (_char * nbytes).from_buffer(region.mapped, offset)
        allocation = _Allocation(holder, self._freed.append)
        allocation.region, allocation.offset, allocation.nbytes = region, offset, size
        region.allocations[offset] = allocation
        self._in_use += size
        return memoryview(holder).cast("B"), used

    def locate(self, frames: Sequence[Frame]) -> list[tuple[Region, int] | None]:
        """The shared region and the offset of each frame; None for a frame in any other memory."""
        found: list[tuple[Region, int] | None] = []
        addressof, from_buffer = ctypes.addressof, _char.from_buffer
        region, first, last = None, 1, 0
        for frame in frames:
            if frame.readonly or not frame.nbytes:
                found.append(None)
                continue
            address = addressof(from_buffer(frame))
            if not first <= address <= last:  # most frames of a message lie in one region
                there = self._region_at(address)
                if there is None:
                    found.append(None)
                    continue
                region, first, last = there, there.address, there.address + there.nbytes - 1
            assert region is not None
            found.append((region, address - first))
        return found

    def _region_at(self, address: int) -> Region | None:
        at = bisect.bisect_right(self._by_address, address, key=_address) - 1
        if at < 0:
            return None
        region = self._by_address[at]
        return region if address - region.address < region.nbytes and region.fd >= 0 else None

    @property
    def stats(self) -> MemoryStats:
        """How much memory is in use and mapped now."""
        self._reclaim()
        return MemoryStats(self._in_use, sum(s.nbytes for s in self._regions), len(self._regions))

    def close(self) -> None:
        """Return all regions to the system, each when the last view of it is dropped. Idempotent."""
        for region in self._regions:
            region.close()
            region.allocations.clear()
        self._regions.clear()
        self._by_address.clear()
        self._freed.clear()
        self._empty.clear()
        self._in_use = 0

    # ------------------------------------------------------------ inside

    def _find(self, size: int) -> tuple[Region, int, bool] | None:
        for region in self._regions:
            taken = region.take(size)
            if taken is not None:
                self._empty.pop(region, None)
                return region, *taken
        return None

    def _grow(self, size: int) -> tuple[Region, int, bool]:
        nbytes = max(REGION_NBYTES, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        fd, mapped = -1, None
        if self._share:
            try:
                fd, mapped = self._create("blocks", nbytes)
            except OSError as error:
                self.stop_sharing(error)
        if mapped is None:
            mapped = _private(nbytes)
        region = Region(fd, mapped)
        self._regions.append(region)
        bisect.insort(self._by_address, region, key=_address)
        taken = region.take(size)
        assert taken is not None
        return region, *taken

    def _reclaim(self) -> None:
        """Free the allocations whose views are all dropped, and return regions that were empty for long."""
        empty = self._empty
        while self._freed:
            allocation = self._freed.popleft()
            region = allocation.region
            region.free(allocation)
            self._in_use -= allocation.nbytes
            if not region.allocations:
                empty[region] = self._now()
        while len(empty) > 1:
            region = next(itertools.islice(empty, 1, None))
            if empty[region] + KEPT_S > self._now():
                break
            del empty[region]
            self._regions.remove(region)
            self._by_address.remove(region)
            region.close()
            self._on_retired(region.number)


def _private(nbytes: int) -> mmap.mmap:
    """Map private memory, in huge pages if the system has them: they cost fewer page faults and TLB misses."""
    mapped = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped
