"""Runs the user's metric on one validation slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.core.sampling import slot_seed
from paceline.data.loader import BatchMaker
from paceline.data.seeding import preserved, seed_all
from paceline.errors import UsageError
from paceline.types import Sums

Metric = Callable[..., Mapping[str, Any]]


@dataclass(slots=True)
class Validator:
    """A metric with its data."""

    number: int
    name: str
    metric: Metric
    batches: BatchMaker

    def run(self, model: torch.nn.Module, slot: int) -> dict[str, Sums]:
        """The sums of one slot, in eval mode, without gradients; flags and random numbers are left as they were."""
        source = self.batches.source
        start = slot * source.batch_size
        indices = np.arange(start, min(start + source.batch_size, source.length), dtype=np.int64)
        flags = [(module, module.training) for module in model.modules()]
        with preserved(), torch.no_grad():
            batch = self.batches.make(indices, self.number, slot)
            seed_all(slot_seed(self.batches.seed, self.number, slot, "validation"))
            model.eval()
            try:
                values = self.metric(model, *batch) if isinstance(batch, list | tuple) else self.metric(model, batch)
            finally:
                for module, training in flags:
                    module.training = training
        if not isinstance(values, Mapping):
            raise UsageError(f"{self.name} must return a dict of metrics, not {type(values).__name__}")
        return {name: _sums(self.name, name, value, len(indices)) for name, value in values.items()}


def _sums(validator: str, name: str, value: Any, count: int) -> Sums:
    """A scalar is the slot's mean, a vector has one value a sample."""
    tensor = torch.as_tensor(value).detach()
    if tensor.ndim == 0:
        return Sums(float(tensor) * count, float(count))
    if tensor.ndim == 1 and len(tensor) == count:
        return Sums(float(tensor.double().sum()), float(count))
    raise UsageError(
        f"{validator} returned {name} of shape {tuple(tensor.shape)} for {count} samples: return a scalar (the mean) "
        "or one value a sample"
    )
