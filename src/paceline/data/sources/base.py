"""What the sources of files share: their name, their fingerprint, and tables that are read group by group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.shuffles import Indices
from paceline.data.files.places import Files
from paceline.errors import BadRecordError

Column = npt.NDArray[Any] | list[Any]
"""The values of a column: an array of numbers, or a list of texts, bytes or arrays."""
Columns = dict[str, Column]

WINDOW_NBYTES = 256 << 20
"""A source keeps at most about this many decoded bytes, unless `memory_bytes` says otherwise."""
WINDOW = 8
"""How many blocks a shuffle by blocks mixes, if the memory of the source has room for them."""


class FileSource(ABC):
    """A source whose samples follow from its files and its arguments alone: reading draws no random numbers.

    `block_size` samples are near each other in a file, and dear to read one by one; 0 if reading any sample is cheap.
    """

    draws_random_numbers = False

    def __init__(self, files: Files, kind: str) -> None:
        self.files = files
        self.kind = kind
        self._digests: tuple[tuple[str, str], ...] | None = None

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of samples."""

    @abstractmethod
    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """The samples at `positions`, in that order."""

    def __len__(self) -> int:
        return self.length

    @property
    def fingerprint(self) -> str:
        """The kind of the source, its arguments and its length. `file_digests` has the content."""
        return f"{self.kind}, {self.length} samples"

    @property
    def file_digests(self) -> tuple[tuple[str, str], ...]:
        """(name, digest) of each file; they are made at the first use."""
        if self._digests is None:
            self._digests = self.files.digests()
        return self._digests

    @property
    def block_size(self) -> int:
        """The samples of a block, which is read as a whole; 0 if there are none."""
        return 0

    @property
    def block_window(self) -> int:
        """How many blocks a shuffle by blocks mixes."""
        return WINDOW

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns of a table with the type of each; empty for what is no table."""
        return {}

    @property
    def num_shards(self) -> int:
        """How many parts are read as a whole: row groups, files or the like."""
        return len(self.files)

    def where(self, position: int) -> str:
        """The file and the record of a sample, for messages."""
        return f"sample {position}"

    def bad(self, position: int, what: str) -> BadRecordError:
        """The error of a record whose content is damaged."""
        return bad_record_error(f"{self.where(position)}: {what}")


class TableSource(FileSource):
    """A source whose samples are dicts from column to value, and which reads many of them at once."""

    @abstractmethod
    def read_columns(self, positions: Indices) -> Columns:
        """The values of all columns at `positions`, in that order."""

    def read(self, positions: Sequence[int]) -> Sequence[dict[str, Any]]:
        """As `FileSource.read`."""
        columns = self.read_columns(np.asarray(positions, dtype=np.int64))
        for name, values in columns.items():
            self._check_values(name, values, positions)
        return [{name: values[k] for name, values in columns.items()} for k in range(len(positions))]

    def _check_values(self, name: str, values: Column, positions: Sequence[int] | Indices) -> None:
        if isinstance(values, list) and any(value is None for value in values):
            position = int(positions[next(k for k, value in enumerate(values) if value is None)])
            raise self.bad(position, f"column {name!r} is null there")

    def read_batch(self, positions: Indices) -> dict[str, Any]:
        """What the default collate makes of the samples at `positions`: a tensor or list for each column."""
        import torch
        from torch.utils.data import default_collate

        made: dict[str, Any] = {}
        for name, values in self.read_columns(positions).items():
            self._check_values(name, values, positions)
            if isinstance(values, np.ndarray):
                made[name] = torch.from_numpy(np.ascontiguousarray(values))
            else:
                made[name] = default_collate(values)
        return made


class GroupedSource(TableSource):
    """A table whose rows are in groups, such as the row groups of Parquet. The groups read last are kept decoded."""

    def __init__(self, files: Files, kind: str, counts: Sequence[int], memory_bytes: int = WINDOW_NBYTES) -> None:
        super().__init__(files, kind)
        self._starts = np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))
        self.memory_bytes = memory_bytes
        self._kept: OrderedDict[int, tuple[Columns, int]] = OrderedDict()
        self._nbytes = 0

    @property
    def length(self) -> int:
        """The number of rows."""
        return int(self._starts[-1])

    @property
    def num_shards(self) -> int:
        """The number of groups."""
        return len(self._starts) - 1

    @property
    def block_size(self) -> int:
        """The rows of a typical group."""
        return max(1, int(np.median(np.diff(self._starts)))) if self.num_shards > 1 else 0

    @property
    def block_window(self) -> int:
        """As many groups as fit into the memory of the source, beside those that are read next."""
        return (
            max(1, min(WINDOW, self.memory_bytes // (2 * max(1, self.group_nbytes)))) if self.group_nbytes else WINDOW
        )

    @property
    def group_nbytes(self) -> int:
        """About how many bytes a decoded group has; 0 if that is not known."""
        return 0

    @abstractmethod
    def load(self, group: int) -> Columns:
        """Read and decode a group."""

    def group_of(self, positions: Indices) -> Indices:
        """The group of each position."""
        return (np.searchsorted(self._starts, positions, side="right") - 1).astype(np.int64)

    def read_columns(self, positions: Indices) -> Columns:
        """As `TableSource.read_columns`: each group is loaded once."""
        groups = self.group_of(positions)
        if not len(groups):
            return {name: np.zeros(0) for name in self.columns}
        if (groups == groups[0]).all():
            loaded = self._group(int(groups[0]))
            rows = positions - self._starts[groups[0]]
            return {name: _take(values, rows) for name, values in loaded.items()}
        order = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[order])) + 1
        taken = [(chosen, self._rows(positions, chosen, int(groups[chosen[0]]))) for chosen in np.split(order, cuts)]
        return {name: _spread([(at, found[name]) for at, found in taken], len(order)) for name in taken[0][1]}

    def _rows(self, positions: Indices, chosen: Indices, group: int) -> Columns:
        rows = positions[chosen] - self._starts[group]
        return {name: _take(values, rows) for name, values in self._group(group).items()}

    def _group(self, group: int) -> Columns:
        found = self._kept.get(group)
        if found is not None:
            self._kept.move_to_end(group)
            return found[0]
        while self._kept and self._nbytes + self.group_nbytes > self.memory_bytes:
            self._nbytes -= self._kept.popitem(last=False)[1][1]
        loaded = self.load(group)
        nbytes = sum(_nbytes(values) for values in loaded.values())
        self._kept[group] = loaded, nbytes
        self._nbytes += nbytes
        while self._nbytes > self.memory_bytes and len(self._kept) > 1:
            self._nbytes -= self._kept.popitem(last=False)[1][1]
        return loaded


def bad_record_error(problem: str, first: int = -1, count: int = 1) -> BadRecordError:
    """The error of a damaged record, or of the damaged run of `count` records from `first` on."""
    error = BadRecordError(
        f"{problem}. Correct the file, or leave such records out by job.batches(..., on_bad_record='skip')"
    )
    error.problem, error.first, error.count = problem, first, count
    return error


def kind_of(name: str, **arguments: object) -> str:
    """The kind of a source with the arguments that are not None, as one short text."""
    words = [name, *(f"{key}={value}" for key, value in arguments.items() if value is not None)]
    text = " ".join(words)
    return text if len(text) <= 500 else f"{text[:480]}… {blake2b(text.encode(), digest_size=8).hexdigest()}"


def _take(values: Column, rows: Indices) -> Column:
    return values[rows] if isinstance(values, np.ndarray) else [values[int(row)] for row in rows]


def _spread(parts: list[tuple[Indices, Column]], count: int) -> Column:
    """Put the values of each part at its places in one column."""
    first = parts[0][1]
    if isinstance(first, np.ndarray) and all(isinstance(values, np.ndarray) for _, values in parts):
        column = np.empty((count, *first.shape[1:]), dtype=first.dtype)
        for at, values in parts:
            column[at] = values
        return column
    found: list[Any] = [None] * count
    for at, values in parts:
        for place, value in zip(at.tolist(), values, strict=True):
            found[place] = value
    return found


def _nbytes(values: Column) -> int:
    if isinstance(values, np.ndarray):
        return values.nbytes
    return sum(len(v) if isinstance(v, str | bytes) else getattr(v, "nbytes", 64) for v in values) + 56 * len(values)
