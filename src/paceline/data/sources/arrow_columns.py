"""Turns columns of Arrow into arrays of NumPy, or into lists where the values are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.data.sources.base import Column
from paceline.data.sources.extras import need


def type_name(kind: Any) -> str:
    """The name of a type of Arrow."""
    return str(kind)


def values_of(column: Any) -> Column:
    """The values of a chunked array. Nulls are nan among floating-point numbers, and None in a list otherwise.

    Times become int64 (dates int32), decimals float64, lists of one length a two-dimensional array.
    """
    pa, types = need("pyarrow", "data"), need("pyarrow.types", "data")
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if types.is_decimal(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    elif types.is_date32(kind) or types.is_time32(kind):
        column, kind = column.cast(pa.int32()), pa.int32()
    elif types.is_temporal(kind):
        column, kind = column.cast(pa.int64()), pa.int64()
    if types.is_floating(kind):
        return np.asarray(column.to_numpy())
    if types.is_integer(kind) or types.is_boolean(kind):
        if not column.null_count:
            return np.asarray(column.to_numpy())
        number = np.dtype(kind.to_pandas_dtype()).type
        return [None if value is None else number(value) for value in column.to_pylist()]
    if types.is_fixed_size_list(kind) and not column.null_count:
        flat = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=kind.value_type)
        inner = values_of(flat)
        if isinstance(inner, np.ndarray):
            return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(column)
    values: list[Any] = column.to_pylist()
    return values


def _lists(column: Any) -> list[Any]:
    found: list[Any] = []
    for chunk in column.chunks:
        inner = values_of(need("pyarrow", "data").chunked_array([chunk.flatten()], type=chunk.type.value_type))
        lengths = [0 if n is None else n for n in need("pyarrow.compute", "data").list_value_length(chunk).to_pylist()]
        ends = np.cumsum(lengths)
        present = chunk.is_valid().to_pylist()
        found += [
            _copy(inner[end - n : end]) if ok else None for end, n, ok in zip(ends, lengths, present, strict=True)
        ]
    return found


def _copy(values: Column) -> Column:
    """A copy: torch warns of arrays that cannot be written."""
    return values.copy()
