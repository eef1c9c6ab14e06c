"""Promise 3, bounded staleness."""

from __future__ import annotations

import pytest
from tests.kit.core import Desk, ServerKit, segment, sent

from paceline.core.window import admits, needed_watermark
from paceline.messages import (
    PushAck,
    Refused,
)
from paceline.types import UNLIMITED


def test_a_gradient_on_too_old_a_state_is_refused() -> None:
    server = ServerKit(segment(slots=1, data_len=10, window=1, end_step=5))
    for step in range(3):
        server.push(step, 0, 5 + step)
        server.commit(step + 1, step, 5 + step)
    assert sent(server.push(4, 0, 20, base=2), Refused)[0].rule == "stale", "version 2 lacks steps 2 and 3"
    assert sent(server.push(3, 0, 21, base=1), Refused)[0].rule == "stale"
    assert server.core.step_sums.steps == {}
    assert sent(server.push(3, 0, 22, base=2), PushAck)[0].outcome == "held"
    assert sent(server.push(4, 0, 23, base=3), PushAck)[0].outcome == "held"


def test_lock_step_accepts_exactly_the_version_before() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    assert sent(server.push(1, 0, 4, base=0), Refused)[0].rule == "stale", "step 0 is missing in it"
    server.push(0, 0, 5)
    server.commit(1, 0, 5)
    assert sent(server.push(1, 0, 6, base=0), Refused)[0].rule == "stale"
    assert sent(server.push(1, 0, 7, base=9), Refused)[0].rule == "stale", "a version that nobody knows"
    assert sent(server.push(1, 0, 8, base=1), PushAck)[0].outcome == "held"


def test_slots_are_leased_only_within_the_window() -> None:
    desk = Desk(workers=5, mode="ssp:2", slots=1).start(data_len=40).initialise()
    assert [desk.lease(w).step for w in desk.workers[:4]] == [0, 1, 2, 3]
    assert desk.turn("worker-4") == [], "step 4 may not be computed before step 1 is committed"


@pytest.mark.parametrize(
    ("window", "step", "watermark", "admitted"),
    [(0, 5, 5, True), (0, 5, 4, False), (3, 5, 2, True), (3, 5, 1, False), (3, 1, 0, True), (UNLIMITED, 99, 0, True)],
)
def test_a_state_may_lack_as_many_steps_as_the_window_says(
    window: int, step: int, watermark: int, admitted: bool
) -> None:
    assert admits(window, step, watermark) is admitted
    assert admitted is (watermark >= needed_watermark(window, step))
