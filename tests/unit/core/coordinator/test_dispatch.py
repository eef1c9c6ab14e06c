"""The coordinator's decisions, event by event."""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.core import HYPER, TENSORS, CoordinatorKit, fence, model, sent, written

from paceline.core.effects import EvaluationRow, LogRow, PhaseFact, Send, StopFact
from paceline.messages import (
    Abort,
    Assign,
    Beat,
    BeatAck,
    Bye,
    Choose,
    Claim,
    ClaimDone,
    Claimed,
    Committed,
    Declare,
    EvalGrant,
    EvalOver,
    Failed,
    Grant,
    JobArgs,
    Ok,
    PhaseBegun,
    PhaseOver,
    PlacementRequest,
    Plan,
    Prepare,
    Prepared,
    Ready,
    Receipt,
    Refused,
    Register,
    Revoke,
    Sealed,
    Stop,
    Turn,
    Unpin,
    ValidatorSpec,
    Welcome,
)
from paceline.types import INIT_STEP, Commit, Kind, TensorSpec

# ---------------------------------------------------------------- registering and preparing


def test_the_first_workers_dials_are_the_jobs() -> None:
    job = CoordinatorKit(mode="asp").start(begin=False)
    (welcome,) = sent(
        job.say("late", Register(job.req(), "worker", "late", 1, "here", None, JobArgs(7, "asp", 9, 4))), Welcome
    )
    assert welcome.job == job.job


def test_workers_that_disagree_on_seed_or_mode_fail_by_name() -> None:
    job = CoordinatorKit().start(begin=False)
    effects = job.say("w", Register(job.req(), "worker", "worker-9", 1, "here", None, JobArgs(8, "bsp", 2, 1)))
    (abort, *_) = sent(effects, Abort)
    assert abort.kind == "script"
    assert "worker-9 joined with seed=8" in abort.reason


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (model(tensors=(TENSORS[0], TensorSpec("bias", (101,), "float32", Kind.PARAMETER, 0))), "'bias', shape=(101,)"),
        (model(tensors=TENSORS[:1]), "has 1 tensors, others 2"),
        (msgspec.structs.replace(model(), clip_norm=1.0), "clip_norm=1.0"),
        (model(deterministic=False), "deterministic=False"),
    ],
)
def test_a_worker_with_another_model_fails_by_name(other: object, says: str) -> None:
    job = CoordinatorKit().start(begin=False)
    job.say("w", Register(job.req(), "worker", "worker-9", 1, "here", None, job.job))
    (abort, *_) = sent(job.say("w", Prepare(job.req(), other)), Abort)  # type: ignore[arg-type]
    assert says in abort.reason
    assert "worker-9" in abort.reason


def test_a_worker_that_calls_another_loop_fails_by_name() -> None:
    job = CoordinatorKit().start(begin=False)
    job.begin("worker-0")
    (abort, *_) = sent(job.begin("worker-1", data_len=13), Abort)
    assert "data_len=13" in abort.reason
    assert "worker-1" in abort.reason


def test_a_worker_that_skips_a_loop_fails_by_name() -> None:
    job = CoordinatorKit().start(begin=False)
    (abort, *_) = sent(job.begin("worker-1", number=2), Abort)
    assert "number 2" in abort.reason


def test_a_failed_job_tells_everyone_once_and_everyone_who_asks() -> None:
    job = CoordinatorKit().start()
    effects = job.say("worker-0", Failed(job.req(), "script", "Traceback ..."))
    assert len(sent(effects, Ok, "worker-0")) == 1
    assert sorted(e.to for e in effects if sent([e], Abort)) == ["server-0", "worker-0", "worker-1"]  # type: ignore[union-attr]
    assert [m.trace for m in sent(job.turn("worker-1"), Abort)] == ["Traceback ..."]
    assert sent(job.say("server-0", Beat("server-0")), Abort, "server-0")
    assert sent(job.say("new", Register(1, "worker", "new", 1, "here")), Abort)
    assert job.say("worker-1", Failed(job.req(), "script", "another"))[1:] == []


# ---------------------------------------------------------------- requests


def test_a_stranger_is_told_to_register() -> None:
    job = CoordinatorKit().start()
    assert [m.rule for m in sent(job.turn("stranger"), Refused)] == ["unknown"]
    assert job.say("stranger", Ready(0, 1, 0, (), 0, 0, ())) == []


# ---------------------------------------------------------------- leases and losses


def test_a_dead_workers_slot_goes_to_the_one_that_waits() -> None:
    job = CoordinatorKit(workers=5).start().initialise()
    grants = [job.lease(w) for w in job.workers[:4]]
    assert [(g.step, g.slot) for g in grants] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert job.turn("worker-4") == []
    (again,) = sent(job.core.lost("worker-0", "killed", job.now), Grant, "worker-4")
    assert (again.step, again.slot) == (0, 0)
    assert job.core.totals.lost_workers == 1


def test_a_silent_worker_is_evicted_and_may_return() -> None:
    job = CoordinatorKit().start().initialise()
    grant = job.lease("worker-0")
    job.now = 9.0
    for node in ("worker-1", "server-0"):
        job.say(node, Beat(node))
    assert sent(job.core.tick(10.5), Revoke) == []
    assert "worker-0" not in job.core.tables.members.members
    assert grant.fence not in job.core.tables.leases.live
    (ack,) = sent(job.say("beats", Beat("worker-0")), BeatAck)
    assert not ack.known
    assert [m.rule for m in sent(job.turn("worker-0"), Refused)] == ["unknown"]
    job.join("worker-0")
    assert job.lease("worker-0").step == 0


def test_a_sealed_slot_of_a_lost_worker_has_a_moment_of_grace_in_lock_step() -> None:
    job = CoordinatorKit(workers=3).start().initialise()
    grants = [job.lease(w) for w in job.workers[:2]]
    for worker, grant in zip(job.workers, grants, strict=False):
        job.seal(worker, grant)
    job.core.lost("worker-0", "killed", job.now)
    assert [g.step for g in sent(job.turn("worker-2"), Grant)] == [1]
    effects = job.core.tick(job.now + 0.31)
    assert len(sent(effects, Revoke)) == 1, "nobody is free, so somebody who can only wait is called back"


def test_a_worker_that_has_left_gets_nothing_more() -> None:
    job = CoordinatorKit().start().initialise()
    job.say("worker-0", Bye(job.req()))
    assert job.turn("worker-0") == []
    assert len(job.core.tables.leases.live) == 0
    job.core.lost("worker-0", "its process ended", job.now)
    assert job.core.totals.lost_workers == 0


def test_a_lost_server_ends_the_job_unless_it_holds_nothing() -> None:
    small = (TENSORS[1],)
    job = CoordinatorKit(servers=2, tensors=small).start().initialise_with("server-0")
    assert job.core.lost("server-1", "killed", 0.0) == []
    (abort, *_) = sent(job.core.lost("server-0", "killed", 0.0), Abort)
    assert (abort.kind, "server-0 is lost" in abort.reason) == ("lost", True)


# ---------------------------------------------------------------- commits


def test_a_commit_carries_what_the_step_was_made_of() -> None:
    job = CoordinatorKit(servers=2).start().initialise()
    grants = [job.lease(w) for w in job.workers]
    for slot, (worker, grant) in enumerate(zip(job.workers, grants, strict=True)):
        report = Sealed(0, grant.slot, grant.fence, 1.0 if slot else 0.0, HYPER, {"loss": float(slot)}, 0.1)
        job.turn(worker, sealed=report)
    fences = tuple(g.fence for g in grants)
    job.say("server-0", Ready(0, 1, 0, fences, 1, 2, ()))
    effects = job.say("server-1", Ready(0, 1, 0, fences, 0, 5, ()))
    (commit,) = written(effects, Commit)
    assert (commit.fences, commit.hyper, commit.staleness, commit.lag) == (fences, HYPER, 1, 5)
    assert [r.values for r in written(effects, LogRow)] == [{"loss": 0.5}]
    totals = job.core.totals
    assert (totals.samples, totals.skipped_slots, totals.max_staleness, totals.max_lag) == (2.0, 1, 1, 5)
    assert job.core.watermark.low == 1


def test_what_is_ready_again_or_too_late_or_of_another_epoch_changes_nothing() -> None:
    job = CoordinatorKit(slots=1).start().initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    assert job.say("server-0", Ready(0, 2, 0, (grant.fence,), 0, 0, ())) == []
    assert len(written(job.ready("server-0", 0, grant.fence), Commit)) == 1
    assert job.ready("server-0", 0, grant.fence) == []
    assert job.say("server-0", Receipt(0, 1, 0, 0, grant.fence)) == []
    assert job.ready("server-0", 99, grant.fence) == []
    assert len(job.core.tables.gate) == 0


def test_a_server_that_missed_the_choice_is_told_again() -> None:
    job = CoordinatorKit(deterministic=False).start().initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    receipt = Receipt(0, 1, 0, grant.slot, grant.fence)
    assert len(sent(job.say("server-0", receipt), Choose)) == 1
    assert len(sent(job.say("server-0", receipt), Choose)) == 1


def test_wasted_attempts_are_counted() -> None:
    job = CoordinatorKit(slots=1).start().initialise()
    first = job.lease("worker-0")
    job.seal("worker-0", first)
    job.core.lost("worker-0", "killed", job.now)
    job.core.tick(1.0)
    second = job.lease("worker-1")
    assert second.step == 0
    job.seal("worker-1", second)
    job.ready("server-0", 0, first.fence)
    assert job.core.totals.wasted_slots == 1


# ---------------------------------------------------------------- what servers missed


def test_a_server_is_told_again_what_two_beats_in_a_row_lack() -> None:
    job = CoordinatorKit().start().initialise()
    beat = Beat("server-0", 0, 1, -1, 1)
    assert sent(job.say("server-0", beat), Committed) == [], "it may be on its way"
    assert [m.commit.version for m in sent(job.say("server-0", beat), Committed)] == [0]
    assert sent(job.say("server-0", Beat("server-0", 0, 1, 0, 1)), Committed) == []
    assert len(sent(job.say("server-0", Beat("server-0", 0, 0, 0, 0)), Assign)) == 1
    assert len(sent(job.say("server-0", Beat("server-0", 0, 1, 0, 0)), Plan)) == 1


def test_a_version_that_a_server_keeps_for_nothing_is_unpinned() -> None:
    job = CoordinatorKit(slots=1).start(data_len=40).initialise()
    job.finish_step(0)
    assert [m.version for m in sent(job.say("server-0", Beat("server-0", 0, 1, 1, 1, (0, 1))), Unpin)] == [0]


def test_where_the_blocks_are_can_be_asked_again() -> None:
    job = CoordinatorKit().start()
    for _ in range(2):
        assert len(sent(job.say("worker-0", PlacementRequest(job.req(), 1)), Prepared)) == 1


# ---------------------------------------------------------------- phases


def test_a_phase_ends_for_everyone_with_the_same_version_and_the_next_goes_on() -> None:
    job = CoordinatorKit(slots=2).start(data_len=8).initialise()
    job.finish_step(0)
    job.finish_step(1)
    over = [sent(job.turn(w), PhaseOver)[0] for w in job.workers]
    assert [(o.version, o.step, o.finished) for o in over] == [(2, 2, False)] * 2
    (phase,) = written(job.begin("worker-0", number=1, data_len=8), PhaseFact)
    segment = phase.segment
    assert (segment.step, segment.epoch, segment.end_step) == (2, 1, 4)
    assert job.lease("worker-0", phase=1).step == 2
    assert sent(job.turn("worker-1"), PhaseOver)[0].version == 2, "the slow one still ends phase 0"


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
    assert sent(job.turn("joiner"), PhaseOver)[0].version == -1, "a late joiner reads with its first lease"


def test_the_last_version_is_released_when_the_slow_one_is_lost() -> None:
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


# ---------------------------------------------------------------- stopping


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


def test_stop_revokes_what_lies_beyond() -> None:
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


def test_break_after_stop_does_not_wait_for_slots_that_nobody_computes() -> None:
    job = CoordinatorKit(workers=1).start(data_len=40).initialise()
    grant = job.lease("worker-0")
    job.say("worker-0", Stop(job.req(), "later", 3))
    job.say("worker-0", Stop(job.req(), "now", 0, at_once=True))
    assert sent(job.turn("worker-0", abandoned=grant.fence), PhaseOver)[0].version == 0


def test_with_a_window_stop_drains_what_is_leased() -> None:
    job = CoordinatorKit(mode="ssp:2", slots=1).start(data_len=40).initialise()
    a, b = job.lease("worker-0"), job.lease("worker-1")
    job.say("worker-0", Stop(job.req(), "enough", 0))
    for worker, grant in (("worker-1", b), ("worker-0", a)):
        job.seal(worker, grant)
        job.ready("server-0", grant.step, grant.fence)
    assert (job.core.state, job.core.version) == ("finished", 2)


def test_stop_between_phases() -> None:
    job = CoordinatorKit(slots=1).start(data_len=2).initialise()
    job.finish_step(0)
    job.say("worker-0", Stop(job.req(), "enough", 0))
    assert job.core.state == "finished"
    assert sent(job.begin("worker-0", number=1), PhaseBegun)[0].segment is None


# ---------------------------------------------------------------- validation


def with_validator(**changes: object) -> CoordinatorKit:
    job = CoordinatorKit(slots=1).start(begin=False)
    validator = msgspec.structs.replace(ValidatorSpec(0, "accuracy", 1, 8, 4), **changes)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), validator))
        job.begin(worker, data_len=40)
    return job.initialise()


def test_validation_slots_come_first_and_are_pinned_to_one_version() -> None:
    job = with_validator()
    (committed,) = sent(job.finish_step(0), Committed)
    assert committed.commit.pin
    slots = [sent(job.turn(w), EvalGrant)[0] for w in job.workers]
    assert [(s.version, s.slot) for s in slots] == [(1, 0), (1, 1)]
    job.evaluated("worker-0", slots[0])
    (row,) = written(job.evaluated("worker-1", slots[1]), EvaluationRow)
    assert (row.version, row.name) == (1, "accuracy")
    effects = job.finish_step(1)
    assert [m.version for m in sent(effects, Unpin)] == [1], "with the commit that makes it old"


def test_the_last_version_of_a_phase_is_validated_before_anybody_leaves() -> None:
    job = CoordinatorKit(slots=1).start(begin=False)
    validator = ValidatorSpec(0, "accuracy", 100, 4, 4)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), validator))
        job.begin(worker, data_len=2)
    job.initialise().finish_step(0)
    (slot,) = sent(job.turn("worker-0"), EvalGrant)
    assert job.turn("worker-1") == []
    effects = job.evaluated("worker-0", slot)
    assert sorted(e.to for e in effects if sent([e], PhaseOver)) == ["worker-0", "worker-1"]  # type: ignore[union-attr]


def test_the_validation_slot_of_a_lost_worker_is_leased_again() -> None:
    job = with_validator()
    job.finish_step(0)
    (slot,) = sent(job.turn("worker-0"), EvalGrant)
    job.core.lost("worker-0", "killed", job.now)
    (got,) = sent(job.turn("worker-1"), EvalGrant)
    assert got.slot == slot.slot


def test_a_worker_that_waits_on_a_void_validation_slot_gets_another() -> None:
    job = with_validator()
    job.finish_step(0)
    turn = Turn(job.req(), 0, 0)
    (slot,) = sent(job.say("worker-0", turn), EvalGrant)
    job.core.tables.rounds.abandon(slot.fence)
    (again,) = sent(job.say("worker-0", turn), EvalGrant)
    assert again.fence > slot.fence


def test_evaluation_by_hand_is_shared_and_known_to_those_who_ask_later() -> None:
    job = with_validator(every=0)
    job.finish_step(0)
    slots = [sent(job.turn(w, evaluation=0), EvalGrant)[0] for w in job.workers]
    assert [(s.version, s.slot) for s in slots] == [(1, 0), (1, 1)]
    assert job.evaluated("worker-0", slots[0], evaluation=0) == []
    effects = job.evaluated("worker-1", slots[1], evaluation=0)
    assert sorted(e.to for e in effects if sent([e], EvalOver)) == ["worker-0", "worker-1"]  # type: ignore[union-attr]
    assert sent(job.turn("worker-0", evaluation=0), EvalOver)[0].version == 1


def test_a_version_under_evaluation_by_hand_is_kept_while_others_train_on() -> None:
    job = with_validator(every=0, data_len=4)
    (slot,) = sent(job.turn("worker-0", evaluation=0), EvalGrant)
    grant = job.lease("worker-1")
    job.seal("worker-1", grant)
    (committed,) = sent(job.ready("server-0", 0, grant.fence), Committed)
    assert (slot.version, committed.commit.version, committed.keep) == (0, 1, True)


def test_evaluation_without_data_ends_at_once() -> None:
    job = with_validator(every=0, data_len=0)
    (over,) = sent(job.turn("worker-0", evaluation=0), EvalOver)
    assert over.metrics == {}


def test_workers_must_declare_the_same_validations() -> None:
    job = with_validator()
    (abort, *_) = sent(job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "other", 1, 8, 4))), Abort)
    assert "worker-0 declared validation 0" in abort.reason
    job = CoordinatorKit().start()
    assert sent(job.say("worker-0", Declare(job.req(), ValidatorSpec(3, "v", 1, 8, 4))), Abort)
    job = CoordinatorKit().start().initialise()
    assert sent(job.turn("worker-0", evaluation=3), Abort)


def test_a_worker_gets_no_slot_of_a_validation_that_it_does_not_know() -> None:
    job = CoordinatorKit(slots=1).start(data_len=40).initialise()
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "v", 0, 4, 4)))
    (slot,) = sent(job.turn("worker-0", evaluation=0), EvalGrant)
    job.core.lost("worker-0", "killed", job.now)
    assert job.lease("worker-1").step == 0
    assert slot.fence not in job.core.tables.rounds


# ---------------------------------------------------------------- things done once


def test_one_worker_does_it_and_the_next_in_line_if_it_is_lost() -> None:
    job = CoordinatorKit(workers=3).start()
    asked = {w: Claim(job.req(), "save") for w in job.workers}
    assert sent(job.say("worker-0", asked["worker-0"]), Claimed)[0].mine
    assert job.say("worker-1", asked["worker-1"]) == []
    assert job.say("worker-2", asked["worker-2"]) == []
    effects = job.core.lost("worker-0", "killed", job.now)
    assert [c.mine for c in sent(effects, Claimed, "worker-1")] == [True]
    assert sent(job.say("worker-0", ClaimDone(job.req(), "save")), Claimed) == []
    effects = job.say("worker-1", ClaimDone(job.req(), "save"))
    assert [c.mine for c in sent(effects, Claimed, "worker-2")] == [False]
    assert not sent(job.say("worker-0", Register(job.req(), "worker", "worker-0", 1, "here", None, job.job)), Claimed)
    assert [c.mine for c in sent(job.say("worker-0", Claim(job.req(), "save")), Claimed)] == [False]


def test_the_lead_is_one_live_worker() -> None:
    job = CoordinatorKit().start().initialise()
    assert job.lease("worker-0").lead
    assert not job.lease("worker-1").lead
    job.core.lost("worker-0", "killed", job.now)
    assert job.lease("worker-1").lead


def test_the_initial_weights_are_leased_again_when_their_maker_dies() -> None:
    job = CoordinatorKit().start()
    first = job.lease("worker-0")
    early = Turn(job.req(), 0, 0)
    assert sent(job.say("worker-1", early), Grant)[0].step == 0
    effects = job.core.lost("worker-0", "killed", job.now)
    assert len(sent(effects, Revoke, "worker-1")) == 1
    again = job.lease("worker-1")
    assert (first.step, again.step) == (INIT_STEP, INIT_STEP)
    assert again.fence > fence(1)


def test_workers_that_begin_a_job_together_fail_it_together_however_fast_the_first_is() -> None:
    job = CoordinatorKit()
    job.say("server-0", Register(job.req(), "server", "server-0", 1, "here", "there"))
    job.join("worker-0")
    job.begin("worker-0")
    job.initialise()  # before the other one was there
    job.join("worker-1")
    effects = job.begin("worker-1", data_len=13)
    assert {s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Abort)} >= {"worker-0", "worker-1"}
    assert job.core.failure is not None


def test_a_worker_that_joins_a_job_which_has_all_its_workers_is_refused_alone() -> None:
    job = CoordinatorKit().start().initialise()
    job.join("worker-2")
    effects = job.begin("worker-2", data_len=13)
    assert [s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Abort)] == ["worker-2"]
    other = Register(job.req(), "worker", "worker-3", 1, "here", None, JobArgs(8, "bsp", 2, 1))
    assert [s.to for s in job.say("worker-3", other) if isinstance(s, Send)] == ["worker-3"]
    assert job.core.failure is None
    assert job.core.failure is None
    again = Register(job.req(), "worker", "worker-1", 2, "here", None, JobArgs(8, "bsp", 2, 1))
    assert [s.to for s in job.say("worker-1/2", again) if isinstance(s, Send)] == ["worker-1/2"], "started again"
    assert job.core.failure is None
