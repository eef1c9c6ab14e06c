"""The job calls `step()` of a prepared scheduler, so that each step of the job has its hyper-parameters.

A call by the script is refused.
"""

from __future__ import annotations

import copy
from typing import Any

from paceline.errors import LoopError, UsageError
from paceline.worker.binding import Binding


class SchedulerReplay:
    """Sets the hyper-parameters of any step, also of an earlier one, by a replay of the scheduler's steps."""

    def __init__(self, scheduler: Any, binding: Binding) -> None:
        if scheduler.optimizer is not binding.optimizer:
            raise UsageError("the scheduler belongs to another optimizer: make it with the optimizer that you prepare")
        if "metrics" in getattr(scheduler.step, "__code__", _NO_CODE).co_varnames[:2]:
            raise UsageError(
                f"{type(scheduler).__name__} needs a metric at each step and cannot be replayed: set the learning "
                "rate between phases instead"
            )
        # The servers run the optimizer. Without this torch would warn that the scheduler steps before the optimizer.
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
        """Set the hyper-parameters of `step`, which are those after `step` calls of `scheduler.step()`."""
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
        raise LoopError("the job steps a prepared scheduler itself: remove scheduler.step() from the loop")


class _NoCode:
    co_varnames: tuple[str, ...] = ()


_NO_CODE = _NoCode()
