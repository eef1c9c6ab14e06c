"""Validation rounds in the coordinator: their slots are leased like those of training."""

from __future__ import annotations

import msgspec
from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.restarted_job import server_back, trained, validating, worker_back

from paceline.core.effects import (
    EvaluationRow,
    Write,
)
from paceline.messages import (
    Abort,
    Committed,
    Declare,
    EvalGrant,
    EvalOver,
    PhaseOver,
    Register,
    Turn,
    Unpin,
    ValidatorSpec,
)


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
    assert [m.version for m in sent(effects, Unpin)] == [1], "the next commit unpins the version"


def test_the_last_version_of_a_phase_is_validated_before_a_worker_leaves() -> None:
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


def test_every_worker_gets_the_same_result_of_evaluate_even_if_it_asks_later() -> None:
    job = with_validator(every=0)
    job.finish_step(0)
    slots = [sent(job.turn(w, evaluation=0), EvalGrant)[0] for w in job.workers]
    assert [(s.version, s.slot) for s in slots] == [(1, 0), (1, 1)]
    assert job.evaluated("worker-0", slots[0], evaluation=0) == []
    effects = job.evaluated("worker-1", slots[1], evaluation=0)
    assert sorted(e.to for e in effects if sent([e], EvalOver)) == ["worker-0", "worker-1"]  # type: ignore[union-attr]
    assert sent(job.turn("worker-0", evaluation=0), EvalOver)[0].version == 1


def test_a_version_that_one_worker_evaluates_is_kept_while_others_train() -> None:
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
    assert "worker-0 declared other (every 1 steps, 8 samples in batches of 4)" in abort.reason
    assert "Spec(" not in abort.reason
    job = CoordinatorKit().start()
    assert sent(job.say("worker-0", Declare(job.req(), ValidatorSpec(3, "v", 1, 8, 4))), Abort)
    job = CoordinatorKit().start().initialise()
    assert sent(job.turn("worker-0", evaluation=3), Abort)


def test_a_validator_of_an_older_log_gets_its_series_from_the_script() -> None:
    job = CoordinatorKit().start()
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "v", 1, 8, 4)))
    assert not sent(job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "v", 1, 8, 4, 0))), Abort)
    assert job.core.tables.rounds.validators == [ValidatorSpec(0, "v", 1, 8, 4, 0)]
    assert sent(job.say("worker-1", Declare(job.req(), ValidatorSpec(0, "v", 1, 9, 4, 0))), Abort)


def test_a_worker_gets_no_slot_of_a_validator_that_it_has_not_declared() -> None:
    job = CoordinatorKit(slots=1).start(data_len=40).initialise()
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "v", 0, 4, 4)))
    (slot,) = sent(job.turn("worker-0", evaluation=0), EvalGrant)
    job.core.lost("worker-0", "killed", job.now)
    assert job.lease("worker-1").step == 0
    assert slot.fence not in job.core.tables.rounds


def test_a_coordinator_learns_earlier_declarations_from_the_next_turn_of_a_worker() -> None:
    """The worker declared the validator to the earlier coordinator after it had registered with the new one."""
    job = validating(slots=1, rewinds=True)
    job.restart()
    for server in job.servers:
        server_back(job, server)
    worker_back(job, "worker-0", declared=0)
    worker_back(job, "worker-1", declared=1)
    job.now += 1.0
    job.finish_step(0)
    assert sent(job.turn("worker-0"), EvalGrant) == [], (
        "the coordinator does not know yet that worker-0 has the validator"
    )
    assert len(sent(job.turn("worker-1"), EvalGrant)) == 1, "the other worker does not wait for worker-0"
    assert len(sent(job.turn("worker-0", declared=1), EvalGrant)) == 1


def test_a_worker_without_the_validator_does_not_delay_workers_behind_it_in_the_queue() -> None:
    job = validating(data_len=2, slots=1, rewinds=True)
    job.core.tables.rounds.declared["worker-0"] = 0
    grant = job.lease("worker-0")
    assert job.seal("worker-0", grant) == job.turn("worker-1") == [], "both wait, worker-0 first"
    effects = job.ready("server-0", 0, grant.fence)
    assert [e.to for e in effects if sent([e], EvalGrant)] == ["worker-1"]  # type: ignore[union-attr]


def test_after_a_restart_an_unfinished_validation_runs_again_on_the_same_version() -> None:
    job = validating(servers=2, rewinds=True)
    job.finish_step(0)
    assert [r.version for r in job.core.tables.rounds.running.values()] == [1]
    job.restart()
    for server in job.servers:
        effects = server_back(job, server, kept=(1,))
        assert sent(effects, Unpin) == []
    assert [r.version for r in job.core.tables.rounds.running.values()] == [1]
    worker_back(job, "worker-0", declared=1)
    job.now += 1.0
    (grant,) = sent(job.turn("worker-0"), EvalGrant)
    assert (grant.version, grant.validator) == (1, 0)


def test_the_latest_result_of_a_validator_is_that_of_the_newest_version() -> None:
    """Rounds may end in another order than they began, and the log has the order in which they ended."""
    job = trained(2)
    for version in (2, 1):
        job.disk.write(Write(EvaluationRow(0, version, version, "accuracy", {"accuracy": version / 2}, 0)))
    job.restart()
    assert job.core.tables.rounds.latest == {0: (2, {"accuracy": 1.0})}


def test_versions_that_a_server_kept_before_a_rewind_are_not_validated_after_it() -> None:
    """The server was cut off: it does not know of the rewind when it registers with the next coordinator."""
    job = validating(servers=2, rewinds=True)
    job.finish_step(0)
    assert [r.version for r in job.core.tables.rounds.running.values()] == [1]
    job.wrote(job.core.lost("server-1", "gone", job.now))
    job.say("server-1/2", Register(job.req(), "server", "server-1", 2, "here", "there"))
    assert (job.core.incarnation, job.core.version, job.core.machines.rewind.is_rewinding) == (1, -1, False)
    job.restart()
    server_back(job, "server-1/2", applied=-1)
    server_back(job, "server-0", incarnation=0, epoch=1, applied=1, kept=(1,))
    assert not job.core.tables.incarnation.awaited
    assert job.core.tables.rounds.running == {}
