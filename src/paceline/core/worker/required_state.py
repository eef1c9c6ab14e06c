"""The state that a worker must read before it begins a task."""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.window import needed_watermark
from paceline.messages import EvalGrant, EvalOver, Grant, PhaseOver
from paceline.types import UNLIMITED


class Want(NamedTuple):
    """The state to read. If `exact` is 0 or more: exactly that version.

    If `exact` is -1: any state that has every step below `watermark`, and also the step `after` (-2: no such step).
    """

    exact: int
    watermark: int = 0
    after: int = -2


def wanted(task: Grant | EvalGrant | PhaseOver | EvalOver, last_step: int) -> Want | None:
    """The state that `task` needs, in a worker that sealed `last_step` last; None if the task needs no state."""
    match task:
        case Grant(segment=segment) if segment is not None:
            if segment.window == 0:
                return Want(task.step)
            # An asynchronous worker reads what includes its own last step, unless `task` is that step again.
            own = segment.window == UNLIMITED and last_step != task.step
            return Want(-1, needed_watermark(segment.window, task.step), last_step if own else -2)
        case EvalGrant(version=version):
            return Want(version)
        case PhaseOver(version=version) if version >= 0:
            return Want(version)
    return None
