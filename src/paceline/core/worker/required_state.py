"""Which state a worker must read before it begins what it was told to do."""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.window import needed_watermark
from paceline.messages import EvalGrant, EvalOver, Grant, PhaseOver
from paceline.types import UNLIMITED


class Want(NamedTuple):
    """One version exactly, or (`exact` is -1) any that contains all steps below `watermark` and the step `after`."""

    exact: int
    watermark: int = 0
    after: int = -2


def wanted(task: Grant | EvalGrant | PhaseOver | EvalOver, last_step: int) -> Want | None:
    """The state for `task`, by a worker whose own last step is `last_step`; None if it needs none."""
    match task:
        case Grant(segment=segment) if segment is not None:
            if segment.window == 0:
                return Want(task.step)
            # Its own last step, unless that is what it is given again.
            own = segment.window == UNLIMITED and last_step != task.step
            return Want(-1, needed_watermark(segment.window, task.step), last_step if own else -2)
        case EvalGrant(version=version):
            return Want(version)
        case PhaseOver(version=version) if version >= 0:
            return Want(version)
    return None
