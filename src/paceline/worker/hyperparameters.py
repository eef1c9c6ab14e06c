"""Reads the hyper-parameters of the script's optimizer as numbers, which are sent with every sealed slot."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch

from paceline.config.dials import OPTIMIZERS
from paceline.errors import UsageError
from paceline.types import Hyper, Segment


class Hyperparameters:
    """Reads the hyper-parameters of an optimizer.

    Raises:
        UsageError: the optimizer cannot run on servers.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        _check_optimizer(optimizer)
        self._optimizer = optimizer
        self._seen: list[Any] = []
        self._hyper: Hyper = ()

    def now(self) -> Hyper:
        """The hyper-parameters of every param group. The same object is returned until the script assigns a value."""
        optimizer = self._optimizer
        keys = optimizer.defaults
        raw = [group[k] for group in optimizer.param_groups for k in keys]
        if self._seen and len(raw) == len(self._seen) and all(map(is_, raw, self._seen)):
            return self._hyper
        kind = type(optimizer).__name__
        self._hyper = tuple({k: _number(kind, k, group[k]) for k in keys} for group in optimizer.param_groups)
        # The content of a tensor or a list can change while the object stays the same: such values are read each time.
        self._seen = [] if any(isinstance(v, torch.Tensor | list) for v in raw) else raw
        return self._hyper


class LearningRates:
    """Applies what a segment says of the learning rate to hyper-parameters. Keeps the last result."""

    def __init__(self) -> None:
        self._last: tuple[Hyper, float, float, Hyper] = ((), 0.0, 1.0, ())

    def of(self, hyper: Hyper, segment: Segment | None) -> Hyper:
        """`hyper` with the learning rates of `segment`: each is replaced, or multiplied, or as it was."""
        if segment is None or (segment.lr == 0.0 and segment.lr_scale == 1.0):
            return hyper
        before, lr, scale, known = self._last
        if before is not hyper or (lr, scale) != (segment.lr, segment.lr_scale):
            known = tuple({**group, "lr": segment.lr or _scaled(group["lr"], segment.lr_scale)} for group in hyper)
            self._last = hyper, segment.lr, segment.lr_scale, known
        return known


def _scaled(rate: Any, factor: float) -> float:
    return float(rate) * factor


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if kind.__name__ not in OPTIMIZERS or getattr(torch.optim, kind.__name__, None) is not kind:
        raise UsageError(
            f"{kind.__name__} does not run on servers, where an update must be element-wise and known by name: "
            f"use one of torch.optim's {', '.join(OPTIMIZERS)}"
        )
    used = [s for s in optimizer.state.values() if any(k != "sum" and _nonzero(v) for k, v in s.items())]
    if used:
        raise UsageError("the optimizer has taken steps already: call job.prepare() before its first step()")


def _nonzero(value: Any) -> bool:
    return bool(value.any()) if isinstance(value, torch.Tensor) else bool(value)


def _number(optimizer: str, key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple | list) and all(isinstance(v, int | float) for v in value):
        return tuple(float(v) for v in value)
    raise UsageError(f"{optimizer}'s {key} must be a number (the servers need its value), not {value!r}")
