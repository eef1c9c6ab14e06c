"""Turns the `data` argument of `batches` and `validate` into a source, a batch size and a collate function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from paceline.data.source import DatasetSource, Source
from paceline.errors import UsageError

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The source of samples, and how they become batches."""

    source: Source
    batch_size: int
    collate: Collate
    shuffle: bool
    drop_last: bool
    loader_workers: int

    @property
    def length(self) -> int:
        """The number of samples."""
        return self.source.length

    @property
    def tensors(self) -> Sequence[torch.Tensor] | None:
        """The tensors of a `TensorDataset`, which can be indexed directly with the same result; else None."""
        source = self.source
        if type(source) is not DatasetSource or self.collate is not default_collate:
            return None
        return source.data.tensors if type(source.data) is TensorDataset else None


def open_data(
    data: Any,
    batch_size: int | None,
    *,
    shuffle: bool = True,
    collate_fn: Collate | None = None,
    drop_last: bool = False,
    loader_workers: int = 0,
) -> DataSpec:
    """Make the `DataSpec` of `data`: a `Source`, a Dataset or a DataLoader. The settings of a DataLoader are used.

    Raises:
        UsageError: the data cannot be read by position, or a number is out of range.
    """
    if isinstance(data, DataLoader):
        return _from_loader(data, batch_size, loader_workers)
    source = _source(data)
    length = source.length
    if batch_size is None:
        raise UsageError("batch_size is missing: give the number of samples in one slot")
    batch_size = whole_number("batch_size", batch_size)
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, not {batch_size}")
    if loader_workers < 0:
        raise UsageError(f"loader_workers must be 0 or more, not {loader_workers}")
    if length == 0:
        raise UsageError("the data set is empty: it must have at least one sample")
    if drop_last and length < batch_size:
        raise UsageError(
            f"drop_last leaves nothing: {length} samples do not fill a slot of {batch_size}; use a smaller batch_size"
        )
    return DataSpec(source, batch_size, collate_fn or default_collate, shuffle, drop_last, loader_workers)


def _source(data: Any) -> Source:
    if isinstance(data, IterableDataset):
        raise UsageError(
            "an IterableDataset cannot be read by position: give a map-style Dataset (with __len__ and __getitem__)"
        )
    if isinstance(data, Source) and not isinstance(data, Dataset):
        return data
    try:
        return DatasetSource(data, len(data))
    except TypeError:
        raise UsageError(f"{type(data).__name__} has no length: give a map-style Dataset") from None


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int. Integers of numpy are accepted.

    Raises:
        UsageError: `value` is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, not {value!r}") from None


def _from_loader(loader: DataLoader[Any], batch_size: int | None, loader_workers: int) -> DataSpec:
    if loader.batch_size is None or type(loader.batch_sampler).__name__ != "BatchSampler":
        raise UsageError(
            "a DataLoader with its own batch_sampler is refused, since slots decide batches: pass its data set instead"
        )
    if isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement:
        shuffle = True
    elif isinstance(loader.sampler, SequentialSampler):
        shuffle = False
    else:
        raise UsageError(
            f"a DataLoader with a {type(loader.sampler).__name__} is refused, since slots decide which samples are "
            "read: pass its data set instead"
        )
    return open_data(
        loader.dataset,
        batch_size or loader.batch_size,
        shuffle=shuffle,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        loader_workers=loader_workers or loader.num_workers,
    )
