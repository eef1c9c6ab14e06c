"""What one server lends to another: sums of a step, and blocks with their optimizer state as they were."""

from __future__ import annotations

import weakref

import torch

from paceline.blocks.chunks import Lent
from paceline.blocks.sums import Rooms
from paceline.transport.base import Delivery, Frame, Memory

_SPARE = 2


class Room(Lent):
    """Memory for one block of a sum, in a place that peers of this host can read."""

    __slots__ = ("frame", "tensor")

    def __init__(self, frame: Frame, dtype: torch.dtype) -> None:
        super().__init__()
        self.frame = frame
        self.tensor = torch.frombuffer(frame, dtype=dtype)


class SharedRooms(Rooms):
    """`Rooms` whose content is sent: a room that was given back is taken again only when nobody reads it.

    A backup reads a sum until it has applied it, so that two rooms take turns. Whether it still does, and where there
    is more memory, only the port's own thread may ask: it calls `reserve` before another thread calls `take`.
    """

    __slots__ = ("_all", "_idle", "_memory", "_nbytes", "_reserved")

    def __init__(self, numel: int, dtype: torch.dtype, memory: Memory) -> None:
        super().__init__(numel, dtype)
        self._memory = memory
        self._nbytes = numel * dtype.itemsize
        self._all: dict[int, Room] = {}
        self._idle: list[Room] = []
        self._reserved: Room | None = None

    def reserve(self) -> None:
        """Choose what the next `take` gives."""
        if self._reserved is None:
            self._reserved = next((r for r in self._idle if r.idle), None)
            if self._reserved is None:
                self._reserved = Room(self._memory.allocate(self._nbytes), self._dtype)
            else:
                self._idle.remove(self._reserved)

    def take(self) -> torch.Tensor:
        """Room for one sum."""
        self.reserve()
        room, self._reserved = self._reserved, None
        assert room is not None
        self._all[room.tensor.data_ptr()] = room
        return room.tensor

    def give(self, room: torch.Tensor | None) -> None:
        """Nobody here needs `room` any more; peers may still read it."""
        found = None if room is None else self._all.pop(room.data_ptr(), None)
        if found is not None and not self._frugal:
            self._idle.append(found)
            del self._idle[:-_SPARE]  # a peer that is stuck must not keep those from being used that are not

    def frugal(self, yes: bool) -> None:
        """As `Rooms.frugal`."""
        super().frugal(yes)
        if yes:
            self._idle.clear()

    def find(self, room: torch.Tensor) -> Room:
        """What was taken as `room`."""
        return self._all[room.data_ptr()]


class Held:
    """Blocks as they were at one version, lent to one who is given them in parts.

    It lasts as long as any of these parts does; `reader` is done when it is gone and all that was sent is read.
    """

    __slots__ = ("__weakref__", "reader")

    def __init__(self) -> None:
        self.reader = HeldReader(weakref.ref(self))

    def lend(self, delivery: Delivery) -> None:
        """A part of it is on its way until `delivery` is done."""
        self.reader.lend(delivery)


class HeldReader(Lent):
    """The `Delivery` that updates look at before they write. It does not keep what is held alive."""

    __slots__ = ("_held",)

    def __init__(self, held: weakref.ref[Held]) -> None:
        super().__init__()
        self._held = held

    @property
    def done(self) -> bool:
        """Whether all of it may be written again."""
        return self._held() is None and self.idle
