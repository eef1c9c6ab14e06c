"""The source seam: samples by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Source(Protocol):
    """A data set as a function of the position. An object with these members can be given to `job.batches`.

    Every worker of a job must see the same length and the same samples. A source that is read by loader processes is
    copied into them.
    """

    @property
    def length(self) -> int:
        """The number of samples; it does not change during a phase."""
        ...

    @property
    def fingerprint(self) -> str:
        """A name of the content: two sources with different samples should have different ones."""
        ...

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """The samples at `positions` (each in ``range(length)``), in that order. May block.

        Random numbers come from torch, numpy and random only, which the caller has seeded: then the same positions
        give the same samples in any process. An exception ends the job with its traceback.
        """
        ...


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A map-style data set (with `__len__` and `__getitem__`) as a `Source`."""

    data: Any
    length: int

    @property
    def fingerprint(self) -> str:
        """Class and length: a data set has no name of its content, and reading samples may have side effects."""
        kind = type(self.data)
        return f"{kind.__module__}.{kind.__qualname__}:{self.length}"

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """The samples at `positions`, one by one."""
        return [self.data[position] for position in positions]
