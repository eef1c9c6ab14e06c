"""The job calls `step()` of a prepared scheduler, so that each step of the job has its hyper-parameters.

A call by the script is refused.
"""

from __future__ import annotations

import copy
from typing import Any

from paceline.core.sampling import epochs_before
from paceline.errors import LoopError, UsageError
from paceline.types import Segment
from paceline.worker.binding import Binding
from paceline.worker.schedule_end import LowRates, declared_end

EVERY = ("step", "epoch")


class SchedulerReplay:
    """Sets the hyper-parameters of any step, also of an earlier one, by a replay of the scheduler's steps.

    The scheduler is stepped after each step of the job, or after each epoch, as `every` says. Both are functions of
    the job's segments, so every worker has the same hyper-parameters at the same step.
    """

    def __init__(self, scheduler: Any, binding: Binding, every: str = "step") -> None:
        if every not in EVERY:
            raise UsageError(f'scheduler_every must be "step" or "epoch", not {every!r}')
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
        self._every = every
        self._groups = binding.optimizer.param_groups
        self._step = scheduler.step
        self._initial = (copy.deepcopy(scheduler.state_dict()), self._numbers())
        self._at = 0
        self._low = LowRates(self._rates())
        self._has_warned = False
        scheduler.step = _refuse_by_step if every == "step" else _refuse_by_epoch

    def _numbers(self) -> list[dict[str, Any]]:
        return [{k: copy.copy(v) for k, v in group.items() if k != "params"} for group in self._groups]

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self._groups]

    def begin_step(self, segment: Segment | None, step: int) -> None:
        """Set the hyper-parameters of `step`, which lies in `segment` or at its end.

        Without a segment the job had ended before this worker's loop, and the epochs of the job are not known here.
        """
        if self._every == "step":
            self.seek(step)
        elif segment is not None:
            self.seek(epochs_before(segment, step))

    def seek(self, calls: int) -> None:
        """Set the hyper-parameters that the optimizer has after `calls` calls of `scheduler.step()`."""
        if calls < self._at:
            state, numbers = copy.deepcopy(self._initial)
            self._scheduler.load_state_dict(state)
            for group, values in zip(self._groups, numbers, strict=True):
                group.update(values)
            self._at = 0
            self._low = LowRates(self._rates())
        while self._at < calls:
            self._call()
            self._at += 1
            self._low.note(self._rates())

    def _call(self) -> None:
        try:
            self._step()
        except ValueError as error:  # OneCycleLR refuses more calls than it has steps
            error.add_note(self._advice)
            raise

    def warning(self, segment: Segment) -> str:
        """Why the schedule ends long before the loop of `segment` does; empty if it does not. Warns once."""
        if self._has_warned:
            return ""
        text = self._too_short(segment) or self._too_low()
        self._has_warned = bool(text)
        return f"{text}. {self._advice}" if text else ""

    def _too_short(self, segment: Segment) -> str:
        calls = segment.end_step if self._every == "step" else segment.end_epoch
        end = declared_end(self._scheduler)
        if end is None or calls < end.misused_from:
            return ""
        return f"{end.name} ends after {end.calls} {self._every}s, but this loop ends after {calls}"

    def _too_low(self) -> str:
        since = self._low.used_up_since
        if since is None:
            return ""
        return (
            f"at {self._every} {self._at} the learning rate is {max(self._rates()):.1g}: since {self._every} {since} "
            "it is at most 1/1000 of its largest value"
        )

    @property
    def _advice(self) -> str:
        if self._every == "epoch":
            return "The job steps the scheduler after each epoch: give it a longer schedule"
        return (
            "The job steps the scheduler after each step: if it counts epochs, use "
            'job.prepare(..., scheduler_every="epoch")'
        )


def _refuse_by_step(*_: object, **__: object) -> None:
    raise LoopError(
        "the job steps a prepared scheduler itself, after each step: remove scheduler.step() from the loop. If the "
        'scheduler counts epochs, use job.prepare(..., scheduler_every="epoch")'
    )


def _refuse_by_epoch(*_: object, **__: object) -> None:
    raise LoopError(
        "the job steps a prepared scheduler itself, after each epoch: remove scheduler.step() from the loop"
    )


class _NoCode:
    co_varnames: tuple[str, ...] = ()


_NO_CODE = _NoCode()
