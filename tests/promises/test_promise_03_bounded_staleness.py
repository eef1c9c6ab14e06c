"""Promise 3: a gradient for step t is computed on a state with every step below t − window.

Servers check it where they accept the gradient.
Upheld by: `core.window.window_refusal` (called by `core.server.attempts`) and `core.window.needed_watermark`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kit.checked_runs import check_once, logs_of
from tests.kit.core import CoordinatorKit, ServerKit, segment, sent
from tests.kit.real_runs import train

from paceline.core.window import admits, needed_watermark
from paceline.messages import PushAck, Refused
from paceline.types import UNLIMITED


def test_a_gradient_on_too_old_a_state_is_refused() -> None:
    server = ServerKit(segment(slots=1, data_len=10, window=1, end_step=5))
    for step in range(3):
        server.push(step, 0, 5 + step)
        server.commit(step + 1, step, 5 + step)
    assert sent(server.push(4, 0, 20, base=2), Refused)[0].rule == "stale", "version 2 lacks steps 2 and 3"
    assert sent(server.push(3, 0, 21, base=1), Refused)[0].rule == "stale"
    assert server.core.attempts.steps == {}
    assert sent(server.push(3, 0, 22, base=2), PushAck)[0].outcome == "held"
    assert sent(server.push(4, 0, 23, base=3), PushAck)[0].outcome == "held"


def test_lock_step_accepts_exactly_the_version_before() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    assert sent(server.push(1, 0, 4, base=0), Refused)[0].rule == "stale", "the version lacks step 0"
    server.push(0, 0, 5)
    server.commit(1, 0, 5)
    assert sent(server.push(1, 0, 6, base=0), Refused)[0].rule == "stale"
    assert sent(server.push(1, 0, 7, base=9), Refused)[0].rule == "stale", "the server does not know the version"
    assert sent(server.push(1, 0, 8, base=1), PushAck)[0].outcome == "held"


def test_slots_are_leased_only_within_the_window() -> None:
    job = CoordinatorKit(workers=5, mode="ssp:2", slots=1).start(data_len=40).initialise()
    assert [job.lease(w).step for w in job.workers[:4]] == [0, 1, 2, 3]
    assert job.turn("worker-4") == [], "step 4 may not be computed before step 1 is committed"


@pytest.mark.parametrize(
    ("window", "step", "watermark", "admitted"),
    [(0, 5, 5, True), (0, 5, 4, False), (3, 5, 2, True), (3, 5, 1, False), (3, 1, 0, True), (UNLIMITED, 99, 0, True)],
)
def test_a_state_may_lack_as_many_steps_as_the_window_says(
    window: int, step: int, watermark: int, admitted: bool
) -> None:
    assert admits(window, step, watermark) is admitted
    assert admitted is (watermark >= needed_watermark(window, step))


@pytest.mark.real_run
def test_ssp_never_exceeds_its_window(tmp_path: Path) -> None:
    epochs = 32  # 2,048 steps
    sleep = json.dumps({"worker-1": 0.012})
    trained = train(
        tmp_path, ["-w", "2", "-s", "2", "--mode", "ssp:3"], "counts", "--epochs", str(epochs), "--sleep", sleep
    )
    commits = check_once(trained, epochs)
    assert len(commits) >= 2000
    assert max(c.staleness for c in commits) == trained.summary["max_staleness"]
    assert 0 < trained.summary["max_staleness"] <= 3

    # Compare what the servers report with what the workers read: a state that contains n steps contains the first n
    # of the log, and those must include every step below t - 3.
    missing_below = []
    committed: set[int] = set()
    low = 0
    for commit in commits:
        missing_below.append(low)
        committed.add(commit.step)
        while low in committed:
            low += 1
    missing_below.append(low)
    logs = logs_of(trained)
    assert len(logs) == len(commits)
    stale = [step - missing_below[int(row["seen"])] for step, row in logs.items()]
    assert max(stale) <= 3
    assert sum(s > 0 for s in stale) > len(stale) // 10, "too few gradients were stale for the test to show anything"
