"""The commit log as columns, without an object per commit."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt

from paceline.types import Commit, Fence

Ints = npt.NDArray[np.int64]
_CHUNK = 4096
Variants = tuple[tuple[tuple[int, ...], tuple[Fence, ...]], ...]


class Ledger:
    """All commits of a log, in the order of incarnation and version. A row is the index of a commit in that order.

    `fences` has one (generation, counter) per slot; the fences of row r are those from `first[r]` up to, not including,
    `first[r + 1]`. `variants` maps a row to the commit's variants, if it has any.
    """

    def __init__(self, commits: Iterable[Commit]) -> None:
        """Read `commits` once, without keeping them. They must be in the order of incarnation and version."""
        incarnation, version, step, staleness, empty = (array("q") for _ in range(5))
        samples, first, fences = array("d"), array("q", [0]), array("q")
        self.variants: dict[int, Variants] = {}
        for row, commit in enumerate(commits):
            incarnation.append(commit.incarnation)
            version.append(commit.version)
            step.append(commit.step)
            staleness.append(commit.staleness)
            empty.append(commit.empty)
            samples.append(commit.samples)
            fences.extend(chain.from_iterable(commit.fences))
            first.append(len(fences) // 2)
            if commit.variants:
                self.variants[row] = commit.variants
        self.incarnation, self.version, self.step = _ints(incarnation), _ints(version), _ints(step)
        self.staleness, self.empty, self.first = _ints(staleness), _ints(empty), _ints(first)
        self.samples = np.array(samples, dtype=np.float64)
        self.fences = _ints(fences).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.version)

    def rows(self, incarnation: int, last: int | None = None) -> range:
        """The rows of one incarnation, up to and including version `last` (None: all rows)."""
        start, stop = np.searchsorted(self.incarnation, (incarnation, incarnation + 1))
        if last is not None:
            stop = start + np.searchsorted(self.version[start:stop], last, "right")
        return range(int(start), int(stop))

    def has(self, incarnation: int, version: int) -> bool:
        """Whether the commit of this version and incarnation is in the log."""
        rows = self.rows(incarnation, version)
        return bool(rows) and int(self.version[rows[-1]]) == version

    def each(self, rows: range) -> Iterator[tuple[int, int, int, tuple[Fence, ...]]]:
        """Yield (row, version, step, fences) for each of `rows`, in order."""
        for start in range(rows.start, rows.stop, _CHUNK):
            stop = min(start + _CHUNK, rows.stop)
            ends = self.first[start : stop + 1]
            fences = [Fence(*pair) for pair in self.fences[ends[0] : ends[-1]].tolist()]
            versions, steps = self.version[start:stop].tolist(), self.step[start:stop].tolist()
            cuts = (ends - ends[0]).tolist()
            for i in range(stop - start):
                yield start + i, versions[i], steps[i], tuple(fences[cuts[i] : cuts[i + 1]])


def _ints(values: array[int]) -> Ints:
    return np.array(values, dtype=np.int64)
