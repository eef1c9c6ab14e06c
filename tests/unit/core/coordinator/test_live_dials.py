"""What a coordinator answers to a change of dials, and `--slots auto`."""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.restarted_job import busy

from paceline.core.effects import Effect, SegmentFact, StopFact
from paceline.messages import DialsSet, Refused, SetDials
from paceline.types import DialChange


def job_of(**changes: object) -> CoordinatorKit:
    return CoordinatorKit(workers=2, slots=2, **changes).start(data_len=800).initialise()  # type: ignore[arg-type]


def set_dials(job: CoordinatorKit, *, passed: bool = False, **dials: object) -> list[Effect]:
    change = DialChange(**dials)  # type: ignore[arg-type]
    return job.say("observer", SetDials(job.req(), change, -1, "a test", passed))


def refusal(effects: list[Effect]) -> str:
    (refused,) = sent(effects, Refused)
    assert written(effects, SegmentFact) == []
    return refused.detail


def test_a_dial_that_has_the_value_already_changes_nothing() -> None:
    job = job_of(checkpoint_steps=7)
    for dials in ({"mode": "bsp"}, {"slots": 2}, {"lr_scale": 1.0}, {"checkpoint_steps": 7, "checkpoint_s": 0.0}):
        effects = set_dials(job, **dials)
        assert sent(effects, DialsSet)[0].change == DialChange()
        assert written(effects, SegmentFact) == []
    (done,) = sent(set_dials(job, mode="bsp", lr_scale=0.5), DialsSet)
    assert done.change == DialChange(lr_scale=0.5), "only what is new"


def test_slots_do_not_fit_asp_unless_the_mode_changes_with_them() -> None:
    job = job_of(mode="asp")
    assert "does not fit asp" in refusal(set_dials(job, slots=4))
    assert "does not fit asp" in refusal(set_dials(job_of(), mode="asp", slots=4))
    (done,) = sent(set_dials(job, mode="bsp", slots=4), DialsSet)
    assert done.change == DialChange("bsp", 4)


def test_a_job_that_is_finished_or_stops_or_has_no_worker_refuses() -> None:
    job = CoordinatorKit(workers=2, slots=2)
    assert "no worker has joined" in refusal(set_dials(job, mode="asp"))
    job = job_of(max_steps=1)
    job.lease("worker-0")
    assert "stops before step 1" in refusal(set_dials(job, mode="asp"))
    job = job_of(max_steps=1)
    job.finish_step(0)
    assert job.core.state == "finished"
    assert "finished" in refusal(set_dials(job, mode="asp"))


def test_a_change_moves_the_end_of_a_job_with_a_limit() -> None:
    job = job_of(max_steps=50)
    effects = set_dials(job, slots=4)
    (stop,) = written(effects, StopFact)
    assert stop.closing is not None
    assert (stop.closing.step, stop.closing.offset) == (50, 4 + 49 * 8), "step 0 was leased before"
    assert job.core.tables.phases.open is not None
    assert job.core.tables.phases.open.end == 50


def test_a_worker_that_is_behind_the_job_changes_nothing() -> None:
    job = job_of()
    effects = set_dials(job, passed=True, mode="asp")
    assert sent(effects, DialsSet)[0].change == DialChange()
    assert written(effects, SegmentFact) == []


def test_a_change_between_two_loops_holds_for_the_next_one() -> None:
    job = CoordinatorKit(workers=2, slots=2).start(data_len=4).initialise()
    job.finish_step(0)
    (fact,) = written(set_dials(job, mode="ssp:3"), SegmentFact)
    assert (fact.step, fact.segments) == (1, ())
    job.begin("worker-0", number=1, data_len=8)
    assert job.core.schedule.segment(1).mode == "ssp:3"
    assert job.core.schedule.segment(0).mode == "bsp"


def test_checkpoints_are_due_as_the_change_says() -> None:
    job = job_of()
    assert job.core.machines.checkpoints.every == (0, 0.0)
    set_dials(job, checkpoint_steps=3, checkpoint_s=0.0)
    job.finish_step(0)
    assert job.core.machines.checkpoints.every == (3, 0.0)


def test_unequal_workers_get_more_slots_with_slots_auto() -> None:
    job = CoordinatorKit(workers=2, slots=None)
    job.job = msgspec.structs.replace(job.job, slots_auto=True)
    job.start(data_len=800).initialise()
    assert job.core.schedule.num_slots(0) == 2
    facts: list[SegmentFact] = []
    for step in range(20):
        busy(job, "worker-0", 0.1)
        busy(job, "worker-1", 0.4)
        facts += written(job.finish_step(step), SegmentFact)
    (fact,) = facts
    assert fact.step >= 20
    assert fact.change == DialChange(slots=5)
    assert fact.reason.startswith("slots auto: a slot takes")
    assert "--slots auto" in refusal(set_dials(job, slots=3))


@pytest.mark.parametrize("measured", [0, 1])
def test_slots_auto_waits_until_every_worker_is_measured(measured: int) -> None:
    job = CoordinatorKit(workers=2, slots=None)
    job.job = msgspec.structs.replace(job.job, slots_auto=True)
    job.start(data_len=800).initialise()
    facts: list[SegmentFact] = []
    for step in range(20):
        facts += written(job.finish_step(step), SegmentFact)
    assert facts == []
