"""`optimizer.step()` of the prepared optimizer seals the turn; other optimizers are refused in the loop."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.errors import LoopError, UsageError


def attach(optimizer: torch.optim.Optimizer, seal: Callable[[bool], None]) -> None:
    """Make `optimizer.step()` call ``seal(skipped)`` instead of changing weights: the servers do that, between turns.

    A GradScaler tells an optimizer that supports it whether to skip the step (`found_inf`). The prepared optimizer
    supports it: `skipped` is true then, and the slot is sealed empty.

    Raises:
        UsageError: the optimizer is prepared already.
    """
    if getattr(optimizer, "_paceline", False):
        raise UsageError("this optimizer is prepared already: make a new optimizer for another job")

    def step(self: Any, closure: Callable[[], Any] | None = None) -> None:
        if closure is not None:
            raise LoopError("step(closure) is refused: compute the loss and call backward() in the loop, then step()")
        self._opt_called = True
        seal(_unscale(self))

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # no warning by an earlier scheduler
    marked: Any = optimizer
    marked._paceline = True
    marked._step_supports_amp_scaling = True
    marked.step = MethodType(step, optimizer)
    marked.state_dict = _refuse_state
    marked.load_state_dict = _refuse_state
    marked.add_param_group = _refuse_group


def refuse_others(in_turn: Callable[[], bool]) -> Any:
    """Make `step()` of every other optimizer raise `LoopError` while `in_turn()`; returns a handle with `remove`.

    A second optimizer would change only this worker's copy of the model, so results would depend on who got which slot.
    """

    def refuse(optimizer: Any, *_: object) -> None:
        if in_turn() and not getattr(optimizer, "_paceline", False):
            raise LoopError(
                f"a second optimizer ({type(optimizer).__name__}) stepped in the loop: a job trains one model with one "
                "optimizer. Give it param groups for what needs other hyper-parameters"
            )

    return register_optimizer_step_pre_hook(refuse)


def _unscale(optimizer: Any) -> bool:
    """Divide the gradients by the GradScaler's scale, if it has not done so; True if it says to skip the step."""
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
