"""The state that a worker must read before it begins a task."""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.window import needed_watermark
from paceline.messages import EvalGrant, EvalOver, Grant, PhaseOver
from paceline.types import UNLIMITED


class Want(NamedTuple):
    """Exactly one version; or, if `exact` is -1, any with all steps below `watermark` and the step `after`."""

    exact: int
    watermark: int = 0
    after: int = -2


def wanted(task: Grant | EvalGrant | PhaseOver | EvalOver, last_step: int) -> Want | None:
    """The state for `task` in a worker whose own last step is `last_step`; None if the task needs none."""
    match task:
        case Grant(segment=segment) if segment is not None:
            if segment.window == 0:
                return Want(task.step)
            # An asynchronous worker reads its own last step, unless it is given that step again.
            own = segment.window == UNLIMITED and last_step != task.step
            return Want(-1, needed_watermark(segment.window, task.step), last_step if own else -2)
        case EvalGrant(version=version):
            return Want(version)
        case PhaseOver(version=version) if version >= 0:
            return Want(version)
    return None
