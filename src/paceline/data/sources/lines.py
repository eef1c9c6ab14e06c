"""Text files with an index of byte offsets: CSV, JSON lines, and text by lines."""

from __future__ import annotations

import csv
import io
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.shuffles import Indices
from paceline.data.files.indexes import Progress, index_of, quiet
from paceline.data.files.places import Files
from paceline.data.files.records import EVERY, LARGEST, index_records
from paceline.data.sources.base import Columns, FileSource, TableSource, kind_of
from paceline.errors import BadRecordError, DataError, UsageError

_PROBED = 1000  # records that decide the types of columns
_MOSTLY = 0.95  # of the values that are probed are numbers in a column of numbers
_TYPES = {"int64": int, "float64": float, "float32": float, "str": str}


class Records:
    """The records of text files by position, as bytes without their line breaks."""

    def __init__(self, files: Files, root: Path, *, quotes: bool, header: bool, progress: Progress = quiet) -> None:
        self.files = files

        def build(said: Progress) -> dict[str, Any]:
            return index_records(files, said, quotes=quotes, header=header)

        self._index = index_of(files, f"records {quotes} {header}", build, root, progress)
        self._ends = np.cumsum(self._index["counts"])
        self._quotes = quotes

    @property
    def length(self) -> int:
        """The number of records of all files."""
        return int(self._ends[-1])

    def place(self, position: int) -> tuple[int, int]:
        """The file of a record, and its number in it."""
        number = int(np.searchsorted(self._ends, position, side="right"))
        return number, position - (int(self._ends[number - 1]) if number else 0)

    def header(self, number: int) -> bytes:
        """What is before the first record of a file."""
        return self.files.read(number, 0, int(self._index["begin"][number])).removeprefix(b"\xef\xbb\xbf")

    def read(self, positions: Sequence[int] | Indices) -> list[bytes]:
        """The records at `positions`. Records near each other are read at once."""
        found: dict[int, bytes] = {}
        groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for position in positions:
            number, record = self.place(int(position))
            groups.setdefault((number, record // EVERY), []).append((int(position), record % EVERY))
        for number, first, last in _runs(sorted(groups)):
            lines = self._lines(number, first, last)
            for group in range(first, last + 1):
                for position, inside in groups[number, group]:
                    found[position] = lines[(group - first) * EVERY + inside]
        return [found[int(position)] for position in positions]

    def _lines(self, number: int, first: int, last: int) -> list[bytes]:
        """The records of a file from group `first` to group `last` of the index."""
        base, end = int(self._index["first"][number]), int(self._index["first"][number + 1])
        starts = self._index["starts"]
        start = int(starts[base + first])
        stop = int(starts[base + last + 1]) if base + last + 1 < end else self.files.files[number].size
        if stop - start > EVERY * LARGEST:
            raise DataError(f"{self.files.files[number].name}: the records at byte {start} are too long")
        raw = self.files.read(number, start, stop)
        lines = raw.split(b"\n")
        if self._quotes and b'"' in raw:
            lines = _joined(lines)
        return [line for line in lines if line not in (b"", b"\r")]


def _runs(groups: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(file, first group, last group) of each run of neighbouring groups."""
    runs: list[tuple[int, int, int]] = []
    for number, group in groups:
        if runs and runs[-1][0] == number and runs[-1][2] == group - 1 and group - runs[-1][1] < 4096:
            runs[-1] = (number, runs[-1][1], group)
        else:
            runs.append((number, group, group))
    return runs


def _joined(lines: list[bytes]) -> list[bytes]:
    """Lines as records: a line break inside of quotes belongs to its record."""
    records: list[bytes] = []
    open_quote = False
    for line in lines:
        if open_quote:
            records[-1] += b"\n" + line
        else:
            records.append(line)
        open_quote ^= bool(line.count(b'"') % 2)
    return records


class RecordTable(TableSource):
    """A table whose rows are records of text files."""

    def __init__(self, records: Records, kind: str) -> None:
        super().__init__(records.files, kind)
        self._records = records

    @property
    def length(self) -> int:
        """The number of records."""
        return self._records.length

    def where(self, position: int) -> str:
        """The file and the number of the record in it, from 1."""
        number, record = self._records.place(position)
        return f"record {record + 1} of {self.files.files[number].name}"

    def read_columns(self, positions: Indices) -> Columns:
        """As `TableSource.read_columns`."""
        raw = self._records.read(positions)
        rows = [self._parse(int(p), line) for p, line in zip(positions, raw, strict=True)]
        return {name: _column([row[k] for row in rows]) for k, name in enumerate(self.columns)}

    @abstractmethod
    def _parse(self, position: int, line: bytes) -> list[Any]:
        """The values of one record, in the order of the columns."""


def _column(values: list[Any]) -> Any:
    kinds = {type(value) for value in values}
    if kinds == {int} or kinds == {float} or kinds == {bool}:
        return np.array(values)
    return values if kinds != {np.float32} else np.array(values, dtype=np.float32)


class CsvSource(RecordTable):
    """CSV with a header.

    Columns are int64, float64 or text, as nearly all of their first 1,000 values are, or as `dtypes` says.
    A value of another type, and a record with other columns than the header, is a bad record.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        columns: Sequence[str] | None = None,
        *,
        delimiter: str = ",",
        dtypes: Mapping[str, str] | None = None,
        progress: Progress = quiet,
    ) -> None:
        records = Records(files, root, quotes=True, header=True, progress=progress)
        self._delimiter = delimiter
        names = self._header(records, 0)
        for number in range(1, len(files)):
            if (other := self._header(records, number)) != names:
                differing = sorted(set(other) ^ set(names)) or ["their order"]
                raise DataError(
                    f"{files.files[number].name} has other columns than {files.files[0].name} "
                    f"({', '.join(differing)}): give a pattern for files with one header"
                )
        self._width = len(names)
        chosen = list(names) if columns is None else list(columns)
        for name in [*chosen, *(dtypes or ())]:
            if name not in names:
                raise UsageError(f"{files.files[0].name} has no column {name!r}: its columns are {', '.join(names)}")
        for name, dtype in (dtypes or {}).items():
            if dtype not in _TYPES:
                raise UsageError(f"dtypes= says {dtype!r} for {name}: it can be {', '.join(_TYPES)}")
        self._at = [names.index(name) for name in chosen]
        given = None if not dtypes else ",".join(f"{name}:{dtype}" for name, dtype in sorted(dtypes.items()))
        wanted = None if columns is None else ",".join(columns)
        super().__init__(records, kind_of("csv", columns=wanted, dtypes=given))
        probe = list(self._probe(records.read(range(min(_PROBED, records.length)))))
        self._schema = {
            name: (dtypes or {}).get(name) or _type_of([row[at] for row in probe if at < len(row)])
            for name, at in zip(chosen, self._at, strict=True)
        }
        self._make = [_TYPES[dtype] if dtype != "float32" else np.float32 for dtype in self._schema.values()]

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns with their types."""
        return self._schema

    def _header(self, records: Records, number: int) -> list[str]:
        name = records.files.files[number].name
        try:
            text = records.header(number).decode()
        except UnicodeDecodeError:
            raise DataError(f"{name} is no UTF-8 text: convert it") from None
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=self._delimiter), [])
        if len(set(names)) != len(names) or not names:
            raise DataError(f"{name}: the first line must name each column once, and has {', '.join(names)}")
        return names

    def _probe(self, lines: list[bytes]) -> Iterator[list[str]]:
        for position, line in enumerate(lines):
            with suppress(BadRecordError):
                yield self._split(position, line)

    def _split(self, position: int, line: bytes) -> list[str]:
        try:
            text = line.removesuffix(b"\r").decode()
            return next(csv.reader((text,), delimiter=self._delimiter, strict=True), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise self._bad_early(position, str(error)) from None

    def _bad_early(self, position: int, what: str) -> BadRecordError:
        return self.bad(position, f"it cannot be read as CSV: {what}")

    def _parse(self, position: int, line: bytes) -> list[Any]:
        fields = self._split(position, line)
        if len(fields) != self._width:
            raise self.bad(position, f"it has {len(fields)} fields, and the header has {self._width}")
        values = []
        for at, make, (name, dtype) in zip(self._at, self._make, self._schema.items(), strict=True):
            try:
                values.append(make(fields[at]))
            except ValueError:
                problem = (
                    f"column {name!r} is {fields[at][:50]!r}, which is no {dtype} (as text: dtypes={{{name!r}: 'str'}})"
                )
                raise self.bad(position, problem) from None
        return values


def _type_of(values: list[str]) -> str:
    """The type of a column: a number if nearly all values are numbers. The others are bad records then."""
    for name in ("int64", "float64"):
        if values and sum(_is(value, _TYPES[name]) for value in values) >= _MOSTLY * len(values):
            return name
    return "str"


def _is(value: str, kind: Callable[[str], Any]) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


class JsonLinesSource(RecordTable):
    """JSON lines: each line is an object. Its columns are those of the first line, or `columns`.

    Lists of numbers become arrays. A line that is no object, or lacks a column, is a bad record.
    """

    def __init__(
        self, files: Files, root: Path, columns: Sequence[str] | None = None, progress: Progress = quiet
    ) -> None:
        records = Records(files, root, quotes=False, header=False, progress=progress)
        super().__init__(records, kind_of("json lines", columns=None if columns is None else ",".join(columns)))
        if not records.length:
            raise DataError(f"{files.files[0].name} has no record")
        first = self._first()
        for name in columns or ():
            if name not in first:
                raise UsageError(f"{files.files[0].name} has no column {name!r}: its columns are {', '.join(first)}")
        self._schema = {name: type(first[name]).__name__ for name in (columns or first)}

    @property
    def columns(self) -> Mapping[str, str]:
        """The columns with the types of the first record."""
        return self._schema

    def _first(self) -> dict[str, Any]:
        """The first record that can be read."""
        lines = self._records.read(range(min(_PROBED, self.length)))
        for position, line in enumerate(lines):
            with suppress(BadRecordError):
                return self._object(position, line)
        return self._object(0, lines[0])

    def _object(self, position: int, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.bad(position, f"it is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise self.bad(position, "it is no JSON object")
        return found

    def _parse(self, position: int, line: bytes) -> list[Any]:
        found = self._object(position, line)
        for name in self._schema:
            if found.get(name) is None:
                raise self.bad(position, f"it has no {name!r}")
        return [_numbers(found[name]) for name in self._schema]


def _numbers(value: Any) -> Any:
    if isinstance(value, list) and value and not isinstance(value[0], str | dict):
        try:
            array = np.array(value)
        except ValueError:
            return value
        return value if array.dtype.hasobject else array
    return value


class TextLines(FileSource):
    """Text by lines: a sample is a line without its end. Empty lines are left out."""

    def __init__(self, files: Files, root: Path, progress: Progress = quiet) -> None:
        self._records = Records(files, root, quotes=False, header=False, progress=progress)
        super().__init__(files, "text lines")

    @property
    def length(self) -> int:
        """The number of lines."""
        return self._records.length

    def where(self, position: int) -> str:
        """The file and the line."""
        number, record = self._records.place(position)
        return f"line {record + 1} (without empty ones) of {self.files.files[number].name}"

    def read(self, positions: Sequence[int]) -> Sequence[str]:
        """As `FileSource.read`."""
        found = []
        for position, line in zip(positions, self._records.read(positions), strict=True):
            try:
                found.append(line.removesuffix(b"\r").decode())
            except UnicodeDecodeError as error:
                raise self.bad(int(position), f"it is no UTF-8 text: {error.reason}") from None
        return found
