"""Phases begin and end, and the job stops."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent, written

from paceline.core.effects import PhaseFact, StopFact, WarningFact
from paceline.messages import (
    Abort,
    Committed,
    Declare,
    EvalGrant,
    Ok,
    PhaseBegun,
    PhaseOver,
    Plan,
    Revoke,
    Stop,
    Unpin,
    ValidatorSpec,
)


def test_a_worker_that_calls_another_loop_fails_by_name() -> None:
    job = CoordinatorKit().start(begin=False)
    job.begin("worker-0")
    (abort, *_) = sent(job.begin("worker-1", data_len=13), Abort)
    assert abort.reason.startswith(
        "worker-1 began its loop number 1 over job.batches(...) with a data set of length 13, "
    )
    assert "others" not in abort.reason


def test_a_worker_that_skips_a_loop_fails_by_name() -> None:
    job = CoordinatorKit().start(begin=False)
    (abort, *_) = sent(job.begin("worker-1", number=2), Abort)
    assert "began its loop number 3" in abort.reason


def test_a_phase_ends_with_one_version_for_all_workers_and_the_next_begins_from_it() -> None:
    job = CoordinatorKit(slots=2).start(data_len=8).initialise()
    job.finish_step(0)
    job.finish_step(1)
    over = [sent(job.turn(w), PhaseOver)[0] for w in job.workers]
    assert [(o.version, o.step, o.finished) for o in over] == [(2, 2, False)] * 2
    (phase,) = written(job.begin("worker-0", number=1, data_len=8), PhaseFact)
    segment = phase.segment
    assert (segment.step, segment.epoch, segment.end_step) == (2, 1, 4)
    assert job.lease("worker-0", phase=1).step == 2
    assert sent(job.turn("worker-1"), PhaseOver)[0].version == 2, "the slow worker still ends phase 0"


def test_the_last_version_of_a_phase_is_kept_until_all_have_left_it() -> None:
    job = CoordinatorKit(slots=1).start(data_len=4).initialise()
    job.finish_step(0)
    job.finish_step(1)
    job.join("joiner")
    job.begin("worker-0", number=1)
    grant = job.lease("worker-0", phase=1)
    job.seal("worker-0", grant, phase=1)
    effects = job.ready("server-0", 2, grant.fence)
    assert [m.keep for m in sent(effects, Committed)] == [True], "worker-1 has yet to read version 2"
    assert sent(effects, Unpin) == []
    assert sent(job.turn("worker-1"), PhaseOver)[0].version == 2
    effects = job.begin("worker-1", number=1)
    assert [m.version for m in sent(effects, Unpin)] == [2]
    assert sent(job.turn("joiner"), PhaseOver)[0].version == -1, "a late joiner reads its state with its first lease"


def test_the_last_version_of_a_phase_is_released_when_the_slow_worker_is_lost() -> None:
    job = CoordinatorKit(slots=1).start(data_len=4).initialise()
    job.finish_step(0)
    job.finish_step(1)
    job.begin("worker-0", number=1)
    grant = job.lease("worker-0", phase=1)
    job.seal("worker-0", grant, phase=1)
    job.ready("server-0", 2, grant.fence)
    assert [m.version for m in sent(job.core.lost("worker-1", "killed", job.now), Unpin)] == [2]


def test_a_worker_of_an_ended_phase_gets_no_slot_of_the_next() -> None:
    validator = ValidatorSpec(0, "v", 1, 4, 4)
    job = CoordinatorKit(slots=1).start(begin=False)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), validator))
        job.begin(worker, data_len=2)
    job.initialise()
    job.finish_step(0)
    (slot,) = sent(job.turn("worker-0"), EvalGrant)
    job.evaluated("worker-0", slot)
    job.begin("worker-0", number=1)
    grant = job.lease("worker-0", phase=1)
    job.seal("worker-0", grant, phase=1)
    job.ready("server-0", 1, grant.fence)
    assert sent(job.turn("worker-0", phase=1), EvalGrant)[0].version == 2
    assert len(sent(job.turn("worker-1"), PhaseOver)) == 1


def test_a_phase_without_data_is_over_at_once() -> None:
    job = CoordinatorKit().start(data_len=0).initialise()
    assert [o.version for w in job.workers for o in sent(job.turn(w), PhaseOver)] == [0, 0]
    job.begin("worker-0", number=1)
    job.lease("worker-0", phase=1)


def test_a_late_joiner_runs_finished_phases_with_zero_turns() -> None:
    job = CoordinatorKit(slots=1).start(data_len=2).initialise()
    job.finish_step(0)
    job.join("late")
    assert sent(job.begin("late", data_len=2), PhaseBegun)[0].segment is not None
    assert sent(job.turn("late"), PhaseOver)[0].version == 1


def test_stop_ends_the_job_at_the_next_step_boundary() -> None:
    job = CoordinatorKit().start(data_len=40).initialise()
    first = job.lease("worker-0")
    effects = job.say("worker-0", Stop(job.req(), "enough", first.step))
    (stop,) = written(effects, StopFact)
    assert stop.closing is not None
    assert (stop.closing.step, stop.closing.end_step, stop.step) == (1, 1, 1)
    job.seal("worker-0", first)
    effects = job.finish_step(0)
    assert job.core.state == "finished"
    assert [p.final for p in sent(effects, Plan)] == [1]
    (over,) = sent(job.turn("worker-1"), PhaseOver)
    assert (over.version, over.finished) == (1, True)
    assert sent(job.begin("worker-1", number=1), PhaseBegun)[0].segment is None


def test_a_stop_of_a_worker_that_is_behind_the_job_has_no_effect_and_is_shown() -> None:
    job = CoordinatorKit().start(data_len=40).initialise()
    effects = job.say("worker-1", Stop(job.req(), "no better", -1, passed=True))
    assert len(sent(effects, Ok, "worker-1")) == 1
    assert (written(effects, StopFact), job.core.state) == ([], "running")
    (warning,) = written(effects, WarningFact)
    assert warning.text.startswith("job.stop('no better') of worker-1 had no effect")


def test_stop_revokes_leases_beyond_the_last_step() -> None:
    job = CoordinatorKit(slots=1).start(data_len=40).initialise()
    job.lease("worker-0")
    early = job.lease("worker-1")
    effects = job.say("worker-0", Stop(job.req(), "enough", 0))
    assert [m.fence for m in sent(effects, Revoke, "worker-1")] == [early.fence]


def test_break_ends_the_job_at_the_last_committed_version() -> None:
    job = CoordinatorKit().start(data_len=40).initialise()
    job.finish_step(0)
    grant = job.lease("worker-0")
    effects = job.say("worker-0", Stop(job.req(), "break", grant.step, at_once=True))
    assert job.core.state == "finished"
    assert [p.final for p in sent(effects, Plan)] == [1]
    assert sent(job.turn("worker-0", abandoned=grant.fence), PhaseOver)[0].version == 1


def test_break_after_the_last_slot_of_a_step_is_sealed_ends_the_job_after_that_step() -> None:
    job = CoordinatorKit(slots=2).start(data_len=40).initialise()
    slots = [job.lease(worker) for worker in job.workers]
    for worker, grant in zip(job.workers, slots, strict=True):
        job.seal(worker, grant)
    job.say("worker-0", Stop(job.req(), "break", 0, at_once=True))
    assert (job.core.state, job.core.version) == ("running", 0), "the step is sealed, and not committed yet"
    for server in job.servers:
        job.ready(server, 0, *(grant.fence for grant in slots))
    assert (job.core.state, job.core.version) == ("finished", 1)


def test_break_does_not_wait_for_a_step_with_a_slot_that_nobody_has_sealed() -> None:
    job = CoordinatorKit(slots=2).start(data_len=40).initialise()
    job.seal("worker-0", job.lease("worker-0"))
    job.lease("worker-1")
    job.say("worker-0", Stop(job.req(), "break", 0, at_once=True))
    assert (job.core.state, job.core.version) == ("finished", 0)


def test_a_second_break_ends_the_job_sooner_if_a_sealed_slot_is_void() -> None:
    """The servers have changed, and no worker has the slot any more: all of them have left their loops."""
    job = CoordinatorKit(slots=1, workers=1).start(data_len=40).initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    job.say("worker-0", Stop(job.req(), "break", 0, at_once=True))
    job.core.tables.leases.restart(0, initialised=True)
    again = job.lease("worker-0")
    assert again.step == 0
    job.say("worker-0", Stop(job.req(), "break", 0, at_once=True))
    assert (job.core.state, job.core.version) == ("finished", 0)


def test_break_after_stop_does_not_wait_for_slots_without_a_worker() -> None:
    job = CoordinatorKit(workers=1).start(data_len=40).initialise()
    grant = job.lease("worker-0")
    job.say("worker-0", Stop(job.req(), "later", 3))
    job.say("worker-0", Stop(job.req(), "now", 0, at_once=True))
    assert sent(job.turn("worker-0", abandoned=grant.fence), PhaseOver)[0].version == 0


def test_with_a_window_a_stop_waits_for_the_leased_slots() -> None:
    job = CoordinatorKit(mode="ssp:2", slots=1).start(data_len=40).initialise()
    a, b = job.lease("worker-0"), job.lease("worker-1")
    job.say("worker-0", Stop(job.req(), "enough", 0))
    for worker, grant in (("worker-1", b), ("worker-0", a)):
        job.seal(worker, grant)
        job.ready("server-0", grant.step, grant.fence)
    assert (job.core.state, job.core.version) == ("finished", 2)


def test_a_stop_between_phases_finishes_the_job() -> None:
    job = CoordinatorKit(slots=1).start(data_len=2).initialise()
    job.finish_step(0)
    job.say("worker-0", Stop(job.req(), "enough", 0))
    assert job.core.state == "finished"
    assert sent(job.begin("worker-0", number=1), PhaseBegun)[0].segment is None


def test_a_worker_of_a_stopped_job_learns_the_segments_of_its_loops() -> None:
    """Its script runs from the start, as after a resume: `job.step` and `job.epoch` in it are those of each loop."""
    job = CoordinatorKit(slots=1).start(data_len=2).initialise()
    job.finish_step(0)
    (second,) = sent(job.begin("worker-0", number=1, data_len=2), PhaseBegun)
    job.finish_step(1, phase=1)
    job.say("worker-0", Stop(job.req(), "enough", 1))
    assert job.core.state == "finished"
    job.join("late")
    (first,) = sent(job.begin("late", number=0, data_len=2), PhaseBegun)
    assert first.segment is not None
    assert (first.segment.epoch, first.segment.end_step) == (0, 1)
    assert sent(job.begin("late", number=1, data_len=2), PhaseBegun)[0].segment == second.segment
    assert sent(job.begin("late", number=2, data_len=2), PhaseBegun)[0].segment is None
