"""Parquet and Arrow files: row groups (record batches) are read and decoded as a whole, with the columns asked for."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from paceline.data.files.indexes import Progress, index_of, quiet
from paceline.data.files.places import Files
from paceline.data.sources.arrow_columns import type_name, values_of
from paceline.data.sources.base import WINDOW_NBYTES, Columns, GroupedSource, bad_record_error, kind_of
from paceline.data.sources.extras import need
from paceline.errors import BadRecordError, DataError, DataUnreachableError, UsageError

_OPEN = 16  # files that stay open
_LARGEST_GROUP = 4 << 30  # decoded bytes of a row group


class _Opened(Protocol):
    """An open file of row groups. `sizes` has (rows, decoded bytes) of each group."""

    schema: Any

    def sizes(self) -> list[tuple[int, int]]: ...

    def read(self, group: int, columns: list[str]) -> Any: ...


class _Parquet:
    def __init__(self, path: Path | Any) -> None:
        pq = need("pyarrow.parquet", "data")
        self._file = pq.ParquetFile(path, memory_map=isinstance(path, Path))
        self.schema = self._file.schema_arrow

    def sizes(self) -> list[tuple[int, int]]:
        groups = (self._file.metadata.row_group(g) for g in range(self._file.metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def read(self, group: int, columns: list[str]) -> Any:
        return self._file.read_row_group(group, columns=columns, use_threads=False)


class _Arrow:
    def __init__(self, path: Path | Any) -> None:
        pa = need("pyarrow", "data")
        source = pa.memory_map(str(path)) if isinstance(path, Path) else pa.PythonFile(path, mode="r")
        self._file = need("pyarrow.ipc", "data").open_file(source)
        self.schema = self._file.schema
        self._table = pa.Table

    def sizes(self) -> list[tuple[int, int]]:
        batches = (self._file.get_batch(g) for g in range(self._file.num_record_batches))
        return [(batch.num_rows, batch.nbytes) for batch in batches]

    def read(self, group: int, columns: list[str]) -> Any:
        return self._table.from_batches([self._file.get_batch(group)]).select(columns)


class RowGroups(GroupedSource):
    """The rows of Parquet or Arrow files. A sample is a dict from column to value.

    Parts ``name=value`` of the folders are columns, too. Values that are null are bad records, but in columns of
    floating-point numbers, where they are nan. Times are int64, as in the file.
    """

    def __init__(
        self,
        files: Files,
        format: str,
        columns: Sequence[str] | None,
        index_root: Path,
        memory_bytes: int = WINDOW_NBYTES,
        progress: Progress = quiet,
    ) -> None:
        need("pyarrow", "data")
        self._open_file = _Parquet if format == "parquet" else _Arrow
        self._handles: OrderedDict[int, _Opened] = OrderedDict()
        self._pid = os.getpid()
        self._damaged: dict[int, str] = {}
        self.files = files

        def build(said: Progress) -> dict[str, npt.NDArray[Any]]:
            return self._sizes(said)

        needs_index = len(files) > 8 or not files.is_local
        index = index_of(files, f"groups {format}", build, index_root, progress) if needs_index else build(quiet)
        self._file_of, self._group_in = index["file"], index["group"]
        self._largest = int(np.max(index["nbytes"], initial=0))
        if self._largest > _LARGEST_GROUP:
            raise DataError(
                f"{files.files[0].name}: a row group has {self._largest / 1e9:.1f} GB when it is decoded; write the "
                f"file with smaller row groups (at most {_LARGEST_GROUP / 1e9:.1f} GB)"
            )
        kind = kind_of(format, columns=None if columns is None else ",".join(columns))
        super().__init__(files, kind, index["rows"].tolist(), memory_bytes)
        self._partitions = [_partitions(file.name) for file in files.files]
        _check_partitions(files, self._partitions)
        self._chosen, self._schema = self._choose(columns)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": OrderedDict(), "_kept": OrderedDict(), "_nbytes": 0}

    def _sizes(self, said: Progress) -> dict[str, npt.NDArray[Any]]:
        rows: list[tuple[int, int, int, int]] = []
        schema, done, total = None, 0, sum(file.size for file in self.files.files)
        for number, file in enumerate(self.files.files):
            opened = self._opened(number)
            if schema is None:
                schema = opened.schema
            elif not opened.schema.equals(schema):
                raise DataError(_differing(self.files.files[0].name, schema, file.name, opened.schema))
            rows += [(number, g, count, nbytes) for g, (count, nbytes) in enumerate(opened.sizes()) if count]
            done += file.size
            said(done, total)
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return {"file": table[:, 0], "group": table[:, 1], "rows": table[:, 2], "nbytes": table[:, 3]}

    def _choose(self, columns: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
        schema = self._opened(0).schema
        have = {name: type_name(schema.field(name).type) for name in schema.names}
        have |= dict.fromkeys(self._partitions[0], "folder")
        for name in columns or ():
            if name not in have:
                raise UsageError(
                    f"{self.files.files[0].name} has no column {name!r}: columns= can name {', '.join(have)}"
                )
        chosen = list(have) if columns is None else list(columns)
        return chosen, {name: have[name] for name in chosen}

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns with their types."""
        return self._schema

    @property
    def group_nbytes(self) -> int:
        """The bytes of the largest group, as its file says."""
        return self._largest

    def where(self, position: int) -> str:
        """The file, the row group and the row in it."""
        group = int(self.group_of(np.array([position]))[0])
        file = self.files.files[self._file_of[group]].name
        return f"row {position - int(self._starts[group])} of row group {int(self._group_in[group])} of {file}"

    def load(self, group: int) -> Columns:
        """As `GroupedSource.load`.

        Raises:
            BadRecordError: the group cannot be decoded: all its rows are bad.
        """
        number = int(self._file_of[group])
        if group in self._damaged:
            raise self._bad_group(group)
        in_file = [name for name in self._chosen if name not in self._partitions[number]]
        try:
            table = self._opened(number).read(int(self._group_in[group]), in_file)
            loaded = {name: values_of(table.column(name)) for name in in_file}
        except DataError:
            raise
        except Exception as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None):
                raise
            self._damaged[group] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            raise self._bad_group(group) from None
        rows = int(self._starts[group + 1] - self._starts[group])
        for name, value in self._partitions[number].items():
            loaded[name] = np.full(rows, value) if isinstance(value, int) else [value] * rows
        return {name: loaded[name] for name in self._chosen}

    def _bad_group(self, group: int) -> BadRecordError:
        first = int(self._starts[group])
        file = self.files.files[self._file_of[group]].name
        problem = f"row group {int(self._group_in[group])} of {file} is damaged ({self._damaged[group]})"
        return bad_record_error(problem, first, int(self._starts[group + 1]) - first)

    def _opened(self, number: int) -> _Opened:
        if self._pid != os.getpid():  # a forked process shares no file positions
            self._handles, self._pid = OrderedDict(), os.getpid()
        file, path = self.files.files[number], self.files.path(number)
        if path is not None:
            try:
                self.files.check_unchanged(number, path.stat())
            except OSError as error:
                raise DataUnreachableError(f"{file.name}: {error.strerror}; put the file back") from None
        found = self._handles.get(number)
        if found is None:
            try:
                found = self._open_file(path or self.files.raw(number))
            except (DataError, UsageError):
                raise
            except Exception as error:
                raise DataError(
                    f"{file.name} is no {self._open_file.__name__.strip('_')} file, or it is cut off: "
                    f"{str(error).splitlines()[0][:200]}. Fetch or write it again"
                ) from None
            self._handles[number] = found
            if len(self._handles) > _OPEN:
                self._handles.popitem(last=False)
        return found


def _partitions(name: str) -> dict[str, int | str]:
    """The columns that the folders of a file name, as ``year=2024``; an int where it is a whole number."""
    found: dict[str, int | str] = {}
    for part in name.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and key:
            found[key] = int(value) if value.lstrip("-").isdecimal() else value
    return found


def _check_partitions(files: Files, partitions: Sequence[Mapping[str, int | str]]) -> None:
    first = {key: type(value) for key, value in partitions[0].items()}
    for file, mine in zip(files.files, partitions, strict=True):
        if {key: type(value) for key, value in mine.items()} != first:
            raise DataError(
                f"{file.name} and {files.files[0].name} are in folders with other columns ({', '.join(mine) or 'none'} "
                f"and {', '.join(first) or 'none'}): give one pattern for each kind of folder"
            )


def _differing(first: str, schema: Any, name: str, other: Any) -> str:
    mine = {field.name: type_name(field.type) for field in schema}
    theirs = {field.name: type_name(field.type) for field in other}
    columns = [c for c in {**mine, **theirs} if mine.get(c) != theirs.get(c)]
    listed = "; ".join(f"{c} is {theirs.get(c, 'missing')} instead of {mine.get(c, 'missing')}" for c in columns[:5])
    return (
        f"{name} has other columns than {first}: {listed or 'their order or their metadata differ'}. Write the files "
        "with one schema, or give a pattern that leaves the others out"
    )
