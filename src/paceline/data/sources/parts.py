"""Parts of a source, as positions: nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.core.shuffles import Indices, permute_each
from paceline.data.source import Source
from paceline.errors import BadRecordError, UsageError

_GROUP = 1000


class Part:
    """A part of a source: the samples that lie between two shares of it, chosen by `seed`.

    The source is cut into groups of neighbouring samples. Each group is permuted, and gives the same share of its
    samples to the part, so that a part of sorted data has its share everywhere, and neighbours stay near each other.
    """

    def __init__(self, source: Source, start: float, stop: float, seed: int, group: int) -> None:
        self.source = source
        self._share, self._seed = (start, stop), seed
        self._group = max(1, min(group, source.length))
        self._full, self._last = divmod(source.length, self._group)
        self._first, self._each = self._cut(self._group)
        self._first_of_last, self._rest = self._cut(self._last)

    def _cut(self, size: int) -> tuple[int, int]:
        begin, end = (round(share * size) for share in self._share)
        return begin, end - begin

    def __len__(self) -> int:
        return self.length

    @property
    def length(self) -> int:
        """The number of samples of the part."""
        return self._full * self._each + self._rest

    @property
    def fingerprint(self) -> str:
        """That of the source, with the share and the seed."""
        start, stop = self._share
        return f"{self.source.fingerprint}, {start:g} to {stop:g} of it by seed {self._seed}"

    @property
    def file_digests(self) -> tuple[tuple[str, str], ...]:
        """Those of the source."""
        found: tuple[tuple[str, str], ...] = getattr(self.source, "file_digests", ())
        return found

    @property
    def draws_random_numbers(self) -> bool:
        """Whether reading the source draws random numbers."""
        return bool(getattr(self.source, "draws_random_numbers", True))

    @property
    def block_size(self) -> int:
        """How many samples of a block of the source are in the part; 0 if the source has no blocks."""
        whole = int(getattr(self.source, "block_size", 0))
        return max(1, whole * self.length // max(1, self.source.length)) if whole else 0

    @property
    def block_window(self) -> int:
        """As the source."""
        return int(getattr(self.source, "block_window", 1))

    @property
    def columns(self) -> Mapping[str, str]:
        """Those of the source."""
        found: Mapping[str, str] = getattr(self.source, "columns", {})
        return found

    def places(self, positions: Sequence[int] | Indices) -> Indices:
        """The positions in the source."""
        at = np.asarray(positions, dtype=np.int64)
        found = np.empty_like(at)
        end = self._full * self._each
        inside = at < end
        if inside.any():
            groups, offsets = np.divmod(at[inside], self._each)
            mixed = permute_each(offsets + self._first, self._group, groups, self._seed, 0, "split")
            found[inside] = groups * self._group + mixed
        if not inside.all():
            offsets = at[~inside] - end + self._first_of_last
            groups = np.full(len(offsets), self._full, dtype=np.int64)
            mixed = permute_each(offsets, self._last, groups, self._seed, 0, "split")
            found[~inside] = groups * self._group + mixed
        return found

    def where(self, position: int) -> str:
        """As the source says."""
        place = int(self.places([position])[0])
        where = getattr(self.source, "where", None)
        return f"sample {place}" if where is None else str(where(place))

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """As `Source.read`."""
        try:
            return self.source.read(self.places(positions).tolist())
        except BadRecordError as error:
            error.first, error.count = -1, 1  # they are positions in the source
            raise


class TablePart(Part):
    """A part of a table."""

    def read_batch(self, positions: Indices) -> dict[str, Any]:
        """As `TableSource.read_batch`."""
        found: dict[str, Any] = self.source.read_batch(self.places(positions))  # type: ignore[attr-defined]
        return found


def part_of(source: Source, start: float, stop: float, seed: int, smallest: float) -> Part:
    """The part from share `start` to share `stop`; `smallest` is the smallest share of the same cut.

    Raises:
        UsageError: the part has no sample.
    """
    group = max(_GROUP, int(np.ceil(10 / smallest)))
    kind = TablePart if hasattr(source, "read_batch") else Part
    part = kind(source, start, stop, seed, group)
    if not part.length:
        raise UsageError(f"{stop - start:g} of {source.length} samples is none: use a larger fraction")
    return part


def split(source: Any, fractions: Sequence[float], seed: int) -> tuple[Part, ...]:
    """Cut a source (or a data set with a length) into parts that have no sample in common, by `seed`.

    The parts are sources: they hold positions, not copies.

    Raises:
        UsageError: a fraction is not above 0, or they make more than 1.
    """
    from paceline.data.source import as_source

    if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
        raise UsageError(f"fractions must be above 0 and make at most 1 together, not {', '.join(map(str, fractions))}")
    whole = as_source(source)
    ends = np.minimum(1.0, np.cumsum(np.asarray(fractions, dtype=np.float64))).tolist()
    starts = [0.0, *ends[:-1]]
    smallest = min(fractions)
    return tuple(part_of(whole, start, stop, seed, smallest) for start, stop in zip(starts, ends, strict=True))
