"""Memory for sums that a primary sends to its backups. Servers on the same host read it without a copy."""

from __future__ import annotations

import torch

from paceline.blocks.chunks import Lent
from paceline.blocks.sums import SumMemory
from paceline.transport.base import Frame, Memory

_SPARE = 2  # buffers of a block that are kept to be used again


class SharedSum(Lent):
    """Memory for one block of a sum, which servers on this host can read."""

    __slots__ = ("frame", "tensor")

    def __init__(self, frame: Frame, dtype: torch.dtype) -> None:
        super().__init__()
        self.frame = frame
        self.tensor = torch.frombuffer(frame, dtype=dtype)


class SharedSumMemory(SumMemory):
    """`SumMemory` whose content is sent: memory that is given back is used again only when it has no reader.

    A backup reads a sum until it has applied the sum, so two buffers are used in turn. Only the thread of the port may
    allocate, or ask whether there are readers: it calls `reserve` before another thread calls `take`.
    """

    __slots__ = ("_idle", "_memory", "_nbytes", "_reserved", "_taken")

    def __init__(self, numel: int, dtype: torch.dtype, memory: Memory) -> None:
        super().__init__(numel, dtype)
        self._memory = memory
        self._nbytes = numel * dtype.itemsize
        self._taken: dict[int, SharedSum] = {}
        self._idle: list[SharedSum] = []
        self._reserved: SharedSum | None = None

    def reserve(self) -> None:
        """Choose or allocate the memory that the next `take` returns."""
        if self._reserved is None:
            self._reserved = next((s for s in self._idle if s.idle), None)
            if self._reserved is None:
                self._reserved = SharedSum(self._memory.allocate(self._nbytes), self._dtype)
            else:
                self._idle.remove(self._reserved)

    def take(self) -> torch.Tensor:
        """Memory for one sum; its content is undefined."""
        self.reserve()
        shared, self._reserved = self._reserved, None
        assert shared is not None
        self._taken[shared.tensor.data_ptr()] = shared
        return shared.tensor

    def give_back(self, memory: torch.Tensor | None) -> None:
        """Give back `memory`, which `take` returned; other servers may still read it."""
        found = None if memory is None else self._taken.pop(memory.data_ptr(), None)
        if found is not None and not self._economise:
            self._idle.append(found)
            del self._idle[:-_SPARE]  # the oldest may have a reader that hangs

    def economise(self, yes: bool) -> None:
        """As `SumMemory.economise`."""
        super().economise(yes)
        if yes:
            self._idle.clear()

    def find(self, memory: torch.Tensor) -> SharedSum:
        """The shared memory that `take` returned as `memory`."""
        return self._taken[memory.data_ptr()]
