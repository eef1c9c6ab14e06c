"""Whether a schedule of the learning rate has ended long before the training does: pure functions of its calls.

That is how a scheduler behaves that counts epochs and is stepped after each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.optim import lr_scheduler

_LOW = 1.000001e-3  # a learning rate of at most this part of the largest one so far is low; more for the rounding
_FEWEST = 20  # this many calls with a low rate are the fewest that count


class LowRates:
    """The learning rates of a schedule, call by call: since when they have all been low."""

    def __init__(self, rates: Sequence[float]) -> None:
        """`rates` are those of each param group before the first call."""
        self._largest = list(rates)
        self._calls = 0
        self._since: int | None = None

    def note(self, rates: Sequence[float]) -> None:
        """Note the rates after one more call."""
        self._calls += 1
        self._largest = [max(pair) for pair in zip(self._largest, rates, strict=True)]
        is_low = all(rate <= _LOW * largest for rate, largest in zip(rates, self._largest, strict=True))
        if not is_low or not any(self._largest):
            self._since = None
        elif self._since is None:
            self._since = self._calls

    @property
    def used_up_since(self) -> int | None:
        """The call since which the rates are low, if they were low for most of all calls so far; else None."""
        since = self._since
        return since if since is not None and self._calls - since >= max(since, _FEWEST) else None


class ScheduleEnd(NamedTuple):
    """The end that a scheduler declares: after `calls` calls. `misused_from` calls on, it is surely a mistake."""

    name: str
    calls: int
    misused_from: int


def declared_end(scheduler: Any) -> ScheduleEnd | None:
    """The end of a schedule that says where it ends and goes on after it; None for any other.

    After its end a cosine rises again, so twice its length is a mistake. Milestones may lie early on purpose, but not
    all in the first tenth of the training.
    """
    kind = type(scheduler)
    if kind is lr_scheduler.CosineAnnealingLR:
        return ScheduleEnd(kind.__name__, scheduler.T_max, 2 * scheduler.T_max)
    if kind is lr_scheduler.MultiStepLR and scheduler.milestones:
        last = max(scheduler.milestones)
        return ScheduleEnd(kind.__name__, last, 10 * last)
    if kind is lr_scheduler.SequentialLR:
        inner, start = declared_end(scheduler._schedulers[-1]), scheduler._milestones[-1]
        return None if inner is None else ScheduleEnd(inner.name, start + inner.calls, start + inner.misused_from)
    return None
