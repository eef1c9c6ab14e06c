"""A prepared scheduler is replayed by the job's step, not stepped by the script."""

from __future__ import annotations

import copy
from typing import Any

from paceline.errors import LoopError, UsageError
from paceline.worker.binding import Binding


class SchedulerReplay:
    """A prepared scheduler as a function of the step: a worker can go to any step, also to an earlier one again."""

    def __init__(self, scheduler: Any, binding: Binding) -> None:
        if scheduler.optimizer is not binding.optimizer:
            raise UsageError("the scheduler belongs to another optimizer")
        if "metrics" in getattr(scheduler.step, "__code__", _NO_CODE).co_varnames[:2]:
            raise UsageError(
                f"{type(scheduler).__name__} needs a metric at each step and cannot be replayed: set the learning "
                "rate between phases instead"
            )
        # The optimizer steps elsewhere: without this torch would warn that the scheduler steps before the optimizer.
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
        """Set the hyper-parameters to those of `step`: those after the scheduler has stepped exactly that often."""
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
