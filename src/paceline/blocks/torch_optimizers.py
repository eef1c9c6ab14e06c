"""The classes of `torch.optim`, made from a name and hyper-parameters, over pieces of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, cast

import torch

from paceline.blocks.tensors import as_parameter
from paceline.config.dials import OPTIMIZERS
from paceline.errors import UsageError
from paceline.types import Hyper, OptimizerSpec

State = dict[str, Any]
"""The state of one parameter, by the names of torch."""


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class `name` of `torch.optim`.

    Raises:
        UsageError: servers cannot run this optimizer.
    """
    if name not in OPTIMIZERS:
        raise UsageError(f"{name} does not run on servers; use one of {', '.join(OPTIMIZERS)}")
    return cast(type[torch.optim.Optimizer], getattr(torch.optim, name))


class PieceOptimizer:
    """One optimizer of `torch.optim` over some pieces. It keeps no weights: the caller of `step` passes them."""

    def __init__(self, spec: OptimizerSpec, groups: Sequence[int], samples: Sequence[torch.Tensor]) -> None:
        """`groups[i]` is the param group of piece i, `samples[i]` a tensor of its size and dtype."""
        self._group_numbers = sorted(set(groups))
        self.params = [as_parameter(sample) for sample in samples]
        by_group = [
            {
                "params": [p for p, g in zip(self.params, groups, strict=True) if g == number],
                **_arguments(spec.hyper[number]),
            }
            for number in self._group_numbers
        ]
        kind = optimizer_class(spec.name)
        known = signature(kind).parameters  # AdamW's groups have an entry that its constructor does not take
        first: dict[str, Any] = {k: v for k, v in by_group[0].items() if k != "params" and k in known}
        self._optimizer = kind(by_group, **first)
        marked: Any = self._optimizer
        marked._paceline = True  # the hook on optimizers in the worker's process skips it (embedded mode)
        self._hyper = spec.hyper

    def step(self, hyper: Hyper, weights: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> None:
        """Update `weights` in place with `grads`; a piece whose gradient is None is skipped."""
        if hyper != self._hyper:
            for group, number in zip(self._optimizer.param_groups, self._group_numbers, strict=True):
                group.update(_arguments(hyper[number]))
            self._hyper = hyper
        for param, weight, grad in zip(self.params, weights, grads, strict=True):
            param.data = weight
            param.grad = grad
        self._optimizer.step()
        for param in self.params:
            param.grad = None  # it may be memory of a sender, who waits until it is free

    def state(self, piece: int) -> dict[str, torch.Tensor]:
        """The optimizer state of one piece, by the names of torch; empty before its first update.

        The next `step` writes to these tensors, unless `replace_state` is called before.
        """
        state = self._optimizer.state.get(self.params[piece], {})
        return {name: _as_tensor(value) for name, value in state.items() if value is not None}

    def replace_state(self, reuse: Sequence[State]) -> list[State]:
        """Replace all state by a copy; returns the replaced state, which this optimizer never writes again.

        The copy is made in `reuse`, by piece and name, if that has a tensor of the same size and dtype.
        """
        used: list[State] = []
        for number, param in enumerate(self.params):
            old: State = self._optimizer.state.get(param, {})
            if old:
                spare = reuse[number] if reuse else {}
                self._optimizer.state[param] = {name: _copy(value, spare.get(name)) for name, value in old.items()}
            used.append(old)
        return used

    def load(self, piece: int, state: Mapping[str, torch.Tensor]) -> None:
        """Restore state that `state` returned, or some of it. The optimizer keeps and writes the tensors."""
        if state:
            self._optimizer.state[self.params[piece]].update(state)


def _as_tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _copy(value: Any, reuse: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(reuse, torch.Tensor) and (reuse.shape, reuse.dtype) == (value.shape, value.dtype):
        return reuse.copy_(value)
    return value.clone()


def _arguments(hyper: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in hyper.items()}
