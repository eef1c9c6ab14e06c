"""Workers whose scripts go on after the job is complete."""

from __future__ import annotations

import pytest

from paceline.engines.actions import Action, Dismiss, Tell
from paceline.engines.stragglers import Stragglers
from paceline.messages.status import ProcessStatus, Status


def at(script: str) -> Status:
    return Status(processes=(ProcessStatus("worker-1", "worker", 1, "worker-1/1", 1, True, script),))


def see(stragglers: Stragglers, now: float) -> list[Action]:
    return list(stragglers.see(["worker-1"], now))


@pytest.mark.parametrize(("script", "words"), [("in", "is still in its loop"), ("before", "has not come to its loop")])
def test_a_worker_in_or_before_its_loop_is_named_and_then_ended(script: str, words: str) -> None:
    stragglers = Stragglers(30.0)
    stragglers.note(at(script))
    assert see(stragglers, 100.0) == []
    limit = "it is killed after 30 s (PACELINE_TIMEOUT_S)"
    told = f"the job is complete; waits for worker-1, 5 s so far: its script {words}; {limit}"
    assert see(stragglers, 105.0) == [Tell(told)]
    assert see(stragglers, 106.0) == [], "once is enough"
    why = f"its script {words} 30 s after the job was complete. The result does not need it"
    assert see(stragglers, 130.0) == [Tell(f"worker-1 is killed: {why}", warning=True), Dismiss("worker-1")]


def test_a_worker_after_its_loop_is_named_and_awaited() -> None:
    stragglers = Stragglers(30.0)
    stragglers.note(at("after"))
    see(stragglers, 100.0)
    (told,) = see(stragglers, 110.0)
    assert told == Tell("the job is complete; waits for worker-1, 10 s so far: its script goes on after its loop")
    assert see(stragglers, 169.0) == []
    assert len(see(stragglers, 170.0)) == 1, "a word a minute"
    assert not any(isinstance(action, Dismiss) for action in see(stragglers, 9999.0))


def test_a_worker_that_has_left_the_job_is_after_its_loop() -> None:
    stragglers = Stragglers(30.0)
    stragglers.note(at("in"))
    stragglers.note(Status(left=("worker-1",)))
    see(stragglers, 100.0)
    assert not any(isinstance(action, Dismiss) for action in see(stragglers, 200.0))


def test_a_worker_that_the_coordinator_has_lost_is_where_it_was() -> None:
    stragglers = Stragglers(30.0)
    stragglers.note(at("in"))
    stragglers.note(Status())
    see(stragglers, 100.0)
    assert Dismiss("worker-1") in see(stragglers, 130.0)


def test_a_worker_that_was_started_again_is_before_its_loop() -> None:
    stragglers = Stragglers(30.0)
    stragglers.note(at("after"))
    stragglers.started("worker-1")
    see(stragglers, 100.0)
    assert Dismiss("worker-1") in see(stragglers, 130.0)


def test_the_wait_begins_when_the_job_is_complete() -> None:
    stragglers = Stragglers(30.0)
    stragglers.note(at("in"))
    see(stragglers, 100.0)
    assert list(stragglers.see((), 120.0)) == [], "a rewind: the job is not complete"
    assert see(stragglers, 140.0) == []
    assert Dismiss("worker-1") in see(stragglers, 170.0)
