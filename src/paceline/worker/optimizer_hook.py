"""`optimizer.step()` becomes the seal of a turn; a prepared scheduler is replayed by step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.errors import LoopError, UsageError
from paceline.worker.binding import Binding


def attach(optimizer: torch.optim.Optimizer, seal: Callable[[bool], None]) -> None:
    """From now on `optimizer.step()` calls ``seal(skipped)``: the weights change between turns, on the servers.

    A GradScaler hands its verdict to optimizers that say they understand it; this one does, so a skipped step
    seals the slot empty.
    """
    if getattr(optimizer, "_paceline", False):
        raise UsageError("this optimizer is prepared already")

    def step(self: Any, closure: Callable[[], Any] | None = None) -> None:
        if closure is not None:
            raise LoopError("step(closure) is refused: compute the loss and call backward() in the loop, then step()")
        self._opt_called = True
        seal(_unscale(self))

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a scheduler made before prepare() stays quiet
    marked: Any = optimizer
    marked._paceline = True
    marked._step_supports_amp_scaling = True
    marked.step = MethodType(step, optimizer)
    marked.state_dict = _refuse_state
    marked.load_state_dict = _refuse_state
    marked.add_param_group = _refuse_group


def refuse_others(in_turn: Callable[[], bool]) -> Any:
    """While `in_turn`, no optimizer but the prepared one may step; returns a handle with `remove`.

    What another one trains would be this worker's own, and depend on which slots it happened to compute.
    """

    def refuse(optimizer: Any, *_: object) -> None:
        if in_turn() and not getattr(optimizer, "_paceline", False):
            raise LoopError(
                f"a second optimizer ({type(optimizer).__name__}) stepped in the loop: a job trains one model with one "
                "optimizer. Give it param groups for what needs other hyper-parameters"
            )

    return register_optimizer_step_pre_hook(refuse)


def _unscale(optimizer: Any) -> bool:
    """Undo a GradScaler's factor where it has not been undone; True if the scaler says to skip the step."""
    found, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
    if found is not None and bool(found):
        return True
    if scale is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
    return False


def _refuse_state(*_: object, **__: object) -> Any:
    raise LoopError("the prepared optimizer's state lives on the servers: use job.save() for the model")


def _refuse_group(*_: object, **__: object) -> Any:
    raise LoopError("the servers know the param groups by now: add them before job.prepare(model, optimizer)")


class Replay:
    """A prepared scheduler as a function of the step: any worker can be at any step, also an earlier one again."""

    def __init__(self, scheduler: Any, binding: Binding) -> None:
        if scheduler.optimizer is not binding.optimizer:
            raise UsageError("the scheduler belongs to another optimizer")
        if "metrics" in getattr(scheduler.step, "__code__", _NO_CODE).co_varnames[:2]:
            raise UsageError(
                f"{type(scheduler).__name__} needs a metric at each step and cannot be replayed: set the learning "
                "rate between phases instead"
            )
        # The servers take the steps: a worker whose first turn is a later one has not been idle, as torch would warn.
        binding.optimizer._opt_called = True
        self._scheduler = scheduler
        self._groups = binding.optimizer.param_groups
        self._step = scheduler.step
        self._initial = (copy.deepcopy(scheduler.state_dict()), self._numbers())
        self._at = 0
        scheduler.step = self._refuse

    def _numbers(self) -> list[dict[str, Any]]:
        return [{k: copy.copy(v) for k, v in group.items() if k != "params"} for group in self._groups]

    def seek(self, step: int) -> None:
        """Bring the hyper-parameters to those of `step`: the scheduler has stepped exactly that often."""
        if step < self._at:
            state, numbers = copy.deepcopy(self._initial)
            self._scheduler.load_state_dict(state)
            for group, values in zip(self._groups, numbers, strict=True):
                group.update(values)
            self._at = 0
        while self._at < step:
            self._step()
            self._at += 1

    @staticmethod
    def _refuse(*_: object, **__: object) -> None:
        raise LoopError("the job steps a prepared scheduler itself, once a step: remove scheduler.step() from the loop")


class _NoCode:
    co_varnames: tuple[str, ...] = ()


_NO_CODE = _NoCode()
