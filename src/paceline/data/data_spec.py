"""Turns the `data` argument of `batches` and `validate` into a source, a batch size and a collate function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from paceline.core.shuffles import Indices
from paceline.data.choice import ALL, Choice, SampleOrder, most_bad_records, order_of, part_of_data
from paceline.data.source import DatasetSource, Source, as_source
from paceline.errors import UsageError

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """The source of samples, and how they become batches.

    `worker_init_fn` is called in each loader process before its first sample. A loader process that takes longer than
    `timeout_s` for its samples ends the script with an error; 0 waits for ever. With `pin_memory`, batches are in
    pinned memory if there is a GPU. Up to `max_bad_records` bad records are left out; with -1 the first one ends the
    job.
    """

    source: Source
    batch_size: int
    collate: Collate
    order: SampleOrder
    drop_last: bool
    loader_workers: int
    worker_init_fn: Callable[[int], None] | None = None
    timeout_s: float = 0.0
    pin_memory: bool = False
    max_bad_records: int = -1

    @property
    def shuffle(self) -> bool:
        """Whether the samples come in another order than that of the data."""
        return self.order.shuffle

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
        if self.worker_init_fn is not None and self.loader_workers:
            return None  # it may change the data set of its process
        return source.data.tensors if type(source.data) is TensorDataset else None

    @property
    def read_batch(self) -> Callable[[Indices], Any] | None:
        """What makes the batch of the default collate in one call, for a table that is read in this process."""
        if self.collate is not default_collate or self.loader_workers:
            return None
        found: Callable[[Indices], Any] | None = getattr(self.source, "read_batch", None)
        return found


def open_data(
    data: Any,
    batch_size: int | None,
    *,
    shuffle: bool | str = True,
    collate_fn: Collate | None = None,
    drop_last: bool = False,
    loader_workers: int = 0,
    choice: Choice = ALL,
) -> DataSpec:
    """Make the `DataSpec` of `data`: a `Source`, a Dataset or a DataLoader. The settings of a DataLoader are used.

    Arguments other than the defaults go over them.

    Raises:
        UsageError: the data cannot be read by position, or a number is out of range.
    """
    if isinstance(data, DataLoader):
        size, shuffles, num_workers = _batch_size(data), _shuffles(data), _num_workers(data)
        spec = open_data(
            data.dataset,
            size if batch_size is None else batch_size,
            shuffle=shuffle if shuffles else False,
            collate_fn=collate_fn or data.collate_fn,
            drop_last=drop_last or data.drop_last,
            loader_workers=loader_workers or num_workers,
            choice=choice,
        )
        return replace(spec, worker_init_fn=data.worker_init_fn, timeout_s=data.timeout, pin_memory=data.pin_memory)
    source = as_source(data)
    if choice.fraction != 1.0:
        source = part_of_data(source, choice.fraction, choice.seed, choice.weights)
    order = order_of(source, shuffle, choice.weights)
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
    bad = most_bad_records(choice.on_bad_record, choice.max_bad_records)
    collate = collate_fn or default_collate
    return DataSpec(source, batch_size, collate, order, drop_last, loader_workers, max_bad_records=bad)


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int. Integers of numpy are accepted.

    Raises:
        UsageError: `value` is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, not {value!r}") from None


def _batch_size(loader: DataLoader[Any]) -> int:
    if loader.batch_size is None or type(loader.batch_sampler).__name__ != "BatchSampler":
        raise UsageError(
            "a DataLoader with its own batch_sampler is refused, since slots decide batches: pass its data set "
            "instead, and put weights of samples into the data set or the loss"
        )
    return loader.batch_size


_REMEDIES = {
    "DistributedSampler": "every worker of a job gets its own slots: leave the sampler out, and write shuffle=True",
    "SubsetRandomSampler": "pass torch.utils.data.Subset(data, indices) to a DataLoader with shuffle=True",
    "RandomSampler": "leave replacement and num_samples out; with steps= a loop ends after so many steps",
}
_REMEDY = "pass its data set instead, and put weights of samples into the data set or the loss"


def _shuffles(loader: DataLoader[Any]) -> bool:
    sampler = loader.sampler
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        return True
    if type(sampler) is SequentialSampler:
        return False
    name = type(sampler).__name__
    raise UsageError(
        f"a DataLoader with a {name} is refused, since slots decide which samples are read: "
        f"{_REMEDIES.get(name, _REMEDY)}"
    )


def _num_workers(loader: DataLoader[Any]) -> int:
    context = loader.multiprocessing_context
    if context is not None and (method := context.get_start_method()) != "fork":
        raise UsageError(
            f"a DataLoader with the multiprocessing_context {method!r} is refused, since loader processes are forked: "
            "remove it. What a forked process must not share, such as an open file, it can open in worker_init_fn"
        )
    return loader.num_workers
