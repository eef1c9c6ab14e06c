"""The validators that a script declared, and the computation of one validation slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.core.sampling import slot_seed
from paceline.data.data_spec import DataSpec, open_data, whole_number
from paceline.data.loader import BatchMaker
from paceline.data.seeding import preserved, seed_all
from paceline.errors import UsageError
from paceline.messages import Declare, Ok, ValidatorSpec
from paceline.types import Sums
from paceline.worker.metric_series import Metric, MetricSeries, name_of
from paceline.worker.session import Session

_BATCH_SIZE = 256


def period_of(every: Any) -> int:
    """The number of steps between two validations.

    Raises:
        UsageError: it is no whole number, or below 1.
    """
    period: int = whole_number("every", every)
    if period < 1:
        raise UsageError(f"every must be at least 1, not {every}")
    return period


def validation_data(data: Any, batch_size: int | None) -> DataSpec:
    """The data of a validation, in their own order."""
    return open_data(data, batch_size or (None if hasattr(data, "batch_size") else _BATCH_SIZE), shuffle=False)


@dataclass(slots=True)
class Validator:
    """A metric of the script, and the data on which it is computed."""

    number: int
    name: str
    metric: Metric
    batches: BatchMaker
    series: int

    def run(self, model: torch.nn.Module, slot: int, number: int) -> dict[str, Sums]:
        """Compute the metric on one slot, in eval mode and without gradients, and return its sums.

        Random numbers are those of validator `number`. The train/eval flags of all modules, and the random generators,
        are as before at the end.
        """
        spec = self.batches.spec
        start = slot * spec.batch_size
        positions = np.arange(start, min(start + spec.batch_size, spec.length), dtype=np.int64)
        flags = [(module, module.training) for module in model.modules()]
        with preserved(), torch.no_grad():
            batch = self.batches.make(positions, number, slot)
            seed_all(slot_seed(self.batches.seed, number, slot, "validation"))
            model.eval()
            try:
                values = self.metric(model, *batch) if isinstance(batch, list | tuple) else self.metric(model, batch)
            finally:
                for module, training in flags:
                    module.training = training
        if not isinstance(values, Mapping):
            raise UsageError(f"{self.name} must return a dict of metrics by name, not {type(values).__name__}")
        return {name: _sums(self.name, name, value, len(positions)) for name, value in values.items()}


class Validators:
    """The validators that the script declared. Every call of `validate` and `evaluate` has a number of its own.

    Calls with the same function and data are one series, numbered by its first call. Of the calls of `evaluate` in a
    series only the last is kept: it can compute the slots of the others.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._kept: dict[int, Validator] = {}
        self._newest: dict[int, int] = {}
        self._series_of: list[int] = []
        self._series = MetricSeries()

    def __len__(self) -> int:
        return len(self._series_of)

    def __iter__(self) -> Iterator[Validator]:
        return iter(self._kept.values())

    def declare(self, metric: Metric, spec: DataSpec, *, every: int, period: int) -> Validator:
        """Add a validator for `metric` on the data of `spec`. Its name is that of the function.

        `period` is the number of loops so far, as `MetricSeries` needs it.
        """
        number = len(self._series_of)
        series = self._series.find(metric, spec.source, number, periodic=every > 0, period=period)
        validator = Validator(number, name_of(metric), metric, BatchMaker(spec, self._seed), series)
        self._series_of.append(series)
        self._kept[number] = validator
        if not every:
            replaced = self._newest.get(series)
            self._newest[series] = number
            if replaced is not None:
                self._kept.pop(replaced).batches.close()
        return validator

    def run(self, number: int, model: torch.nn.Module, slot: int) -> dict[str, Sums]:
        """Compute one slot of validator `number`, and return its sums."""
        kept = number if number in self._kept else self._newest[self._series_of[number]]
        return self._kept[kept].run(model, slot, number)

    def close(self) -> None:
        """End all loader processes."""
        for validator in self._kept.values():
            validator.batches.close()


def _sums(validator: str, name: str, value: Any, count: int) -> Sums:
    """The sum and the weight of one metric. A scalar is the mean of the slot; a vector has one value per sample."""
    tensor = torch.as_tensor(value).detach()
    if tensor.ndim == 0:
        return Sums(float(tensor) * count, float(count))
    if tensor.ndim == 1 and len(tensor) == count:
        return Sums(float(tensor.double().sum()), float(count))
    raise UsageError(
        f"{validator} returned {name} of shape {tuple(tensor.shape)} for {count} samples: return a scalar (the mean) "
        "or one value per sample"
    )


def declare_validator(session: Session, validator: Validator, every: int) -> None:
    """Tell the coordinator of a validator, which runs every `every` steps (0: when the script asks for it)."""
    spec, number = validator.batches.spec, validator.number
    declared = ValidatorSpec(number, validator.name, every, spec.length, spec.batch_size, validator.series)
    session.ask(lambda req: Declare(req, declared), Ok)
