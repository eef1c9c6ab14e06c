"""Arrays of NumPy: in memory, and in ``.npy`` files that are read where they lie; tokens in windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.shuffles import Indices
from paceline.data.files.places import Files
from paceline.data.sources.base import Column, FileSource, TableSource, kind_of
from paceline.data.sources.decoding import npy_header
from paceline.errors import DataError, UsageError


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the rows of a ``.npy`` file are."""

    offset: int
    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


def _layout(files: Files, number: int) -> _Layout:
    file = files.files[number]
    try:
        with files.opened(number) as opened:
            shape, fortran, dtype = npy_header(opened)
            offset = opened.tell()
    except (ValueError, EOFError) as error:
        raise DataError(f"{file.name} is no .npy file that can be read: {error}. Write it by numpy.save") from None
    if fortran and len(shape) > 1:
        raise DataError(f"{file.name} is in the order of Fortran: write it by numpy.save(numpy.ascontiguousarray(...))")
    if not shape:
        raise DataError(f"{file.name} holds one number, not rows")
    if dtype.byteorder == ">" or dtype.names is not None:
        raise DataError(f"{file.name} has the type {dtype}: write it as plain numbers of this machine's byte order")
    found = _Layout(offset, shape[0], shape[1:], dtype)
    if offset + found.rows * found.nbytes != file.size:
        raise DataError(
            f"{file.name} has {file.size} bytes, and its header says {offset + found.rows * found.nbytes}, cut off?"
        )
    return found


class NpyRows(FileSource):
    """The rows of ``.npy`` files, one after the other. A sample is a row, as an array."""

    def __init__(self, files: Files) -> None:
        super().__init__(files, "npy")
        self._layouts = [_layout(files, number) for number in range(len(files))]
        first = self._layouts[0]
        for layout, file in zip(self._layouts, files.files, strict=True):
            if (layout.shape, layout.dtype) != (first.shape, first.dtype):
                raise DataError(
                    f"{file.name} has rows of {layout.dtype} {layout.shape}, and {files.files[0].name} has rows of "
                    f"{first.dtype} {first.shape}: give a pattern for files of one kind"
                )
        self._ends = np.cumsum([layout.rows for layout in self._layouts])

    @property
    def length(self) -> int:
        """The number of rows."""
        return int(self._ends[-1])

    @property
    def columns(self) -> Mapping[str, str]:
        """The type and the shape of a row."""
        return {"row": f"{self._layouts[0].dtype} {self._layouts[0].shape}"}

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return self._layouts[0].dtype

    def where(self, position: int) -> str:
        """The file and the row in it."""
        number = int(np.searchsorted(self._ends, position, side="right"))
        row = position - (int(self._ends[number - 1]) if number else 0)
        return f"row {row} of {self.files.files[number].name}"

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """The rows from `start` to before `stop`, which are in one file."""
        number = int(np.searchsorted(self._ends, start, side="right"))
        layout = self._layouts[number]
        start -= int(self._ends[number - 1]) if number else 0
        stop -= int(self._ends[number - 1]) if number else 0
        at = layout.offset + start * layout.nbytes
        raw = self.files.read(number, at, layout.offset + stop * layout.nbytes)
        return np.frombuffer(bytearray(raw), dtype=layout.dtype).reshape(stop - start, *layout.shape)

    def file_ends(self) -> npt.NDArray[np.int64]:
        """The position behind the last row of each file."""
        return self._ends.astype(np.int64)

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """As `FileSource.read`."""
        return [self.rows(int(p), int(p) + 1)[0] for p in positions]


class TokenWindows(FileSource):
    """Windows of `window` tokens, each `stride` tokens behind the one before: int64 arrays. No window spans two files.

    The tokens are the numbers of ``.npy`` files with one dimension, or the bytes of any other files.
    """

    def __init__(self, files: Files, window: int, stride: int | None = None) -> None:
        stride = window if stride is None else stride
        if window < 1 or stride < 1:
            raise UsageError(f"window= and stride= must be at least 1, not {window} and {stride}")
        super().__init__(files, kind_of("windows", window=window, stride=stride))
        self._window, self._stride = window, stride
        self._tokens = NpyRows(files) if files.files[0].name.endswith(".npy") else None
        if self._tokens is not None and (self._tokens.dtype.kind not in "iu" or self._tokens._layouts[0].shape):
            raise DataError(f"{files.files[0].name}: tokens must be whole numbers in one dimension")
        sizes = [f.size for f in files.files] if self._tokens is None else np.diff(self._tokens.file_ends(), prepend=0)
        self._starts = np.concatenate(([0], np.cumsum(sizes)))
        self._ends = np.cumsum([max(0, (int(size) - window) // stride + 1) for size in sizes])
        if not self.length:
            raise DataError(f"{files.files[0].name} is shorter than a window of {window} tokens: use a smaller window=")

    @property
    def length(self) -> int:
        """The number of windows."""
        return int(self._ends[-1])

    @property
    def columns(self) -> Mapping[str, str]:
        """The type and the shape of a sample."""
        return {"tokens": f"int64 ({self._window},)"}

    def where(self, position: int) -> str:
        """The file and the first token."""
        number, start = self._place(position)
        return f"the window at token {start} of {self.files.files[number].name}"

    def _place(self, position: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, position, side="right"))
        return number, (position - (int(self._ends[number - 1]) if number else 0)) * self._stride

    def read(self, positions: Sequence[int]) -> Sequence[Any]:
        """As `FileSource.read`."""
        found = []
        for position in positions:
            number, start = self._place(int(position))
            if self._tokens is None:
                raw = self.files.read(number, start, start + self._window)
                found.append(np.frombuffer(raw, dtype=np.uint8).astype(np.int64))
            else:
                base = int(self._starts[number]) + start
                found.append(self._tokens.rows(base, base + self._window).astype(np.int64))
        return found


class ColumnArrays(TableSource):
    """A table in memory: equally long arrays (or lists) by name. A sample is a dict from name to value."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        super().__init__(Files([]), kind_of("arrays", columns=",".join(arrays)))
        self._arrays: dict[str, Column] = {
            name: value if isinstance(value, list) else np.asarray(value) for name, value in arrays.items()
        }
        lengths = {name: len(value) for name, value in self._arrays.items()}
        if len(set(lengths.values())) != 1:
            raise UsageError(f"the arrays must be equally long, not {lengths or 'none'}")
        self._length = next(iter(lengths.values()))
        self._digest = ""

    @property
    def length(self) -> int:
        """The length of each array."""
        return self._length

    @property
    def columns(self) -> Mapping[str, str]:
        """The names with the types."""
        return {n: f"{v.dtype} {v.shape[1:]}" if isinstance(v, np.ndarray) else "list" for n, v in self._arrays.items()}

    @property
    def file_digests(self) -> tuple[tuple[str, str], ...]:
        """There are no files: each array counts as one, by its bytes."""
        if self._digests is None:
            self._digests = tuple((f"array {name}", _digest(value)) for name, value in self._arrays.items())
        return self._digests

    def read_columns(self, positions: Indices) -> dict[str, Column]:
        """As `TableSource.read_columns`."""
        return {
            name: values[positions] if isinstance(values, np.ndarray) else [values[int(p)] for p in positions]
            for name, values in self._arrays.items()
        }


def _digest(values: Column) -> str:
    out = blake2b(digest_size=8)
    if isinstance(values, np.ndarray):
        out.update(f"{values.dtype} {values.shape}".encode())
        out.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    else:
        out.update(repr(values).encode())
    return out.hexdigest()
