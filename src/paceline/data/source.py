"""The protocol of a source, which reads samples by position, and the source of a map-style data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from paceline.errors import UsageError


@runtime_checkable
class Source(Protocol):
    """A data set that is read by position. Every object with these members can be given to `job.batches`.

    Every worker of a job must see the same length and the same samples. Each loader process has a copy of the source.

    A source may also have: `draws_random_numbers` (False: samples are read many at a time), `read_batch(positions)`
    (what the default collate makes of ``read(positions)``, for tables), `file_digests` (its files with their digests),
    `block_size` and `block_window` (samples that are read together, and how many such blocks a shuffle mixes).
    """

    @property
    def length(self) -> int:
        """The number of samples; it does not change during a phase."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that identifies the content. Sources with different samples should have different fingerprints."""
        ...

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """Return the samples at `positions` (each in ``range(length)``), in that order. May block.

        Draw random numbers from torch, numpy and random only. The caller has seeded them, so the same positions give
        the same samples in every process. An exception ends the job with its
        traceback; a `BadRecordError` may leave the record out instead.
        """
        ...


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A map-style data set (with `__len__` and `__getitem__`) as a `Source`."""

    data: Any
    length: int

    @property
    def fingerprint(self) -> str:
        """Class and length. The content is not used: reading samples may have side effects."""
        kind = type(self.data)
        return f"{kind.__module__}.{kind.__qualname__}:{self.length}"

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """Read the samples at `positions`, one by one."""
        return [self.data[position] for position in positions]


def as_source(data: Any) -> Source:
    """`data` as a source: a `Source` itself, or a map-style data set.

    Raises:
        UsageError: the data cannot be read by position, or have no length.
    """
    kinds = [kind.__name__ for kind in type(data).__mro__]
    if "IterableDataset" in kinds:
        raise UsageError(
            "an IterableDataset cannot be read by position: give a map-style Dataset (with __len__ and __getitem__), "
            "or its shards with the number of samples of each: paceline.data.iterable(lambda shard: ..., counts=[...])"
        )
    if isinstance(data, Source) and "Dataset" not in kinds:
        return data
    try:
        return DatasetSource(data, len(data))
    except TypeError:
        raise UsageError(f"{type(data).__name__} has no length: give a map-style Dataset") from None
