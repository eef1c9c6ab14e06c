"""The state that each kind of task must read."""

from __future__ import annotations

from tests.kit.core import fence, segment

from paceline.core.worker.required_state import Want, wanted
from paceline.messages import EvalGrant, EvalOver, Grant, PhaseOver
from paceline.types import UNLIMITED


def grant(step: int, window: int) -> Grant:
    return Grant(1, 1, 0, 1, step, 0, 1, fence(5), segment(slots=1, window=window), False)


def test_each_kind_of_task_reads_the_state_that_its_window_requires() -> None:
    assert wanted(grant(7, 0), 6) == Want(7)
    assert wanted(grant(7, 3), 6) == Want(-1, 4, -2)
    assert wanted(grant(7, UNLIMITED), 6) == Want(-1, 0, 6)
    assert wanted(grant(7, UNLIMITED), 7) == Want(-1, 0, -2), (
        "a worker does not wait for the step that it must compute again"
    )
    assert wanted(EvalGrant(1, 1, 0, 1, 1, 0, 0, fence(9), 2, False), 6) == Want(2)
    assert wanted(PhaseOver(1, 1, 0, 1, 0, 6, 6, False, True, {}), 6) == Want(6)
    assert wanted(PhaseOver(1, 1, 0, 1, 0, -1, -1, False, True, {}), 6) is None, (
        "the servers have released that version"
    )
    assert wanted(EvalOver(1, 1, 2, 5, {}), 6) is None
