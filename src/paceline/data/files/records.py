"""Finds the records of text files: the byte at which every so many records begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.data.files.indexes import Progress
from paceline.data.files.places import Files
from paceline.errors import DataError

EVERY = 16
"""The index has the beginning of each record whose number in its file is a multiple of this."""
LARGEST = 64 << 20
"""The bytes of the largest record that is read."""
_CHUNK = 8 << 20
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34


def index_records(files: Files, said: Progress, *, quotes: bool, header: bool) -> dict[str, npt.NDArray[Any]]:
    """The columns of the index of all files.

    ``starts``: the offsets; ``first``: the number of the first of them for each file; ``counts``: the records of each
    file; ``begin``: where the records of each file begin, behind a header. Empty lines are no records. With `quotes`, a
    line break inside of quotes does not end a record.
    """
    starts: list[npt.NDArray[np.int64]] = []
    counts, first, begins = [], [0], []
    done, total = 0, sum(file.size for file in files.files)
    for number, file in enumerate(files.files):
        begin = _header_end(files, number, quotes) if header else _skip_mark(files, number)
        count, kept = 0, 0
        for found in _beginnings(files, number, begin, quotes):
            chosen = found[(-count) % EVERY :: EVERY]
            starts.append(chosen.copy())
            kept += len(chosen)
            count += len(found)
            said(done + (int(found[-1]) if len(found) else 0), total)
        counts.append(count)
        first.append(first[-1] + kept)
        begins.append(begin)
        done += file.size
        said(done, total)
    joined = np.concatenate(starts) if starts else np.zeros(0, dtype=np.int64)
    numbers = {"counts": counts, "first": first, "begin": begins}
    return {"starts": joined, **{name: np.array(values, dtype=np.int64) for name, values in numbers.items()}}


def _skip_mark(files: Files, number: int) -> int:
    return 3 if files.read(number, 0, 3) == b"\xef\xbb\xbf" else 0


def _header_end(files: Files, number: int, quotes: bool) -> int:
    """Where the first record of a file ends."""
    begin = _skip_mark(files, number)
    name, size = files.files[number].name, files.files[number].size
    for found in _beginnings(files, number, begin, quotes):
        if len(found) > 1:
            return int(found[1])
        if len(found):
            return size
    raise DataError(f"{name} is empty: it needs a first line with the names of its columns")


def _beginnings(files: Files, number: int, begin: int, quotes: bool) -> Iterator[npt.NDArray[np.int64]]:
    """Where each record of a file begins, chunk by chunk; empty lines are left out."""
    size, name = files.files[number].size, files.files[number].name
    start, inside, blank = begin, False, True
    pending = begin  # where the record begins that the next line break ends
    with files.opened(number) as opened:
        opened.seek(begin)
        while start < size:
            raw = opened.read(min(_CHUNK, size - start))
            if not raw:
                raise EOFError(f"{name} ends before its end")
            data = np.frombuffer(raw, dtype=np.uint8)
            breaks = np.flatnonzero(data == _NEWLINE)
            if quotes and (inside or b'"' in raw):
                marks = np.flatnonzero(data == _QUOTE)
                breaks = breaks[(np.searchsorted(marks, breaks) + inside) % 2 == 0]
                inside ^= bool(len(marks) % 2)
            if len(breaks):
                ends = breaks + start
                begins = np.concatenate(([pending], ends[:-1] + 1))
                full = _is_full(data, breaks, begins - start)
                if begins[0] < start:  # it began in an earlier chunk
                    full[0] = not blank or bool(raw[: int(breaks[0])].strip(b"\r"))
                yield begins[full]
                pending, blank = int(ends[-1]) + 1, True
                rest = raw[int(breaks[-1]) + 1 :]
            else:
                rest = raw
            blank = blank and not rest.strip(b"\r")
            start += len(raw)
            if start - pending > LARGEST:
                what = "a quote without its end" if inside else "a missing line break"
                raise DataError(
                    f"{name}: the record at byte {pending} is longer than {LARGEST >> 20} MiB ({what}?): correct it"
                )
    if inside:
        raise DataError(
            f"{name}: the quote in the record at byte {pending} has no end. Correct or fetch the file again"
        )
    if pending < size and not blank:
        yield np.array([pending], dtype=np.int64)


def _is_full(data: npt.NDArray[np.uint8], breaks: npt.NDArray[Any], begins: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether the line before each of `breaks` has more than a carriage return."""
    lengths = breaks - begins
    full: npt.NDArray[np.bool_] = lengths > 1
    single = np.flatnonzero(lengths == 1)
    full[single] = data[breaks[single] - 1] != _RETURN
    return full
