"""A coordinator that starts again, and a job that goes back to a checkpoint."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.kit.core import BLOCKS, HYPER, Desk, ServerKit, fence, model, segment, sent, turn_of, written

from paceline.core.coordinator.worker_speed import Pace
from paceline.core.effects import ChoiceFact, Complete, Effect, EvaluationRow, IncarnationFact, PlacementFact, Write
from paceline.core.worker.turn import WorkerCore
from paceline.messages import (
    Abort,
    Assign,
    BeatAck,
    BeginPhase,
    Choose,
    Committed,
    Declare,
    EvalGrant,
    Exited,
    GiveBack,
    Grant,
    HeldLease,
    JobArgs,
    NotLoaded,
    Ok,
    PhaseBegun,
    PhaseOver,
    PlacementRequest,
    Plan,
    Prepared,
    Pull,
    PullReply,
    Ready,
    Receipt,
    Refused,
    Register,
    Revoke,
    Saved,
    SaveOver,
    Scale,
    Seal,
    Sealed,
    Stop,
    Turn,
    Unpin,
    ValidatorSpec,
    Welcome,
)
from paceline.types import Commit, Fence, PhaseSpec, Placement, SavedFile, Sums


def validating(*, data_len: int = 80, **spec: Any) -> Desk:
    """A job that validates every version; the initial weights are there."""
    desk = Desk(**spec).start(begin=False)
    for worker in desk.workers:
        desk.say(worker, Declare(desk.req(), ValidatorSpec(0, "accuracy", 1, 8, 4)))
        desk.begin(worker, data_len=data_len)
    return desk.initialise()


def server_back(desk: Desk, server: str, **changes: object) -> list[Effect]:
    placement = desk.core.placement
    epoch = placement.epoch if placement is not None else 0
    intro = Register(desk.req(), "server", server, 1, "here", "there")
    state = {"incarnation": desk.core.incarnation, "epoch": epoch, "applied": desk.core.version}
    return desk.say(server, msgspec.structs.replace(intro, **{**state, **changes}))


def worker_back(desk: Desk, worker: str, *leases: HeldLease, **changes: object) -> list[Effect]:
    intro = Register(desk.req(), "worker", worker, 1, "here", None, desk.job, leases=leases, progress=0)
    return desk.say(worker, msgspec.structs.replace(intro, incarnation=desk.core.incarnation, **changes))


def held(grant: Grant, *, sealed: bool = False) -> HeldLease:
    report = Sealed(grant.step, grant.slot, grant.fence, 1.0, HYPER, {}, 0.1) if sealed else None
    return HeldLease(grant.step, grant.slot, grant.fence, report)


def trained(steps: int = 2, **options: object) -> Desk:
    """A lock-step job with two servers that has committed some steps."""
    desk = Desk(servers=2, rewinds=True, **options).start(data_len=80).initialise()  # type: ignore[arg-type]
    for step in range(steps):
        desk.finish_step(step)
    assert desk.core.version == steps
    return desk


def save(desk: Desk, version: int) -> Complete:
    """Both servers write their part of a checkpoint."""
    assert desk.core.placement is not None
    effects: list[Effect] = []
    for server in desk.servers:
        mine = [b for b, owner in enumerate(desk.core.placement.owners) if owner == server]
        files = (SavedFile(f"{server}.safetensors", 1, "00", tuple(mine)),)
        chains = tuple((b, bytes([b])) for b in mine)
        effects += desk.say(server, Saved(desk.core.incarnation, desk.core.placement.epoch, version, files, chains))
    (complete,) = [e for e in effects if isinstance(e, Complete)]
    return complete


# ---------------------------------------------------------------- the coordinator starts again


def test_a_new_coordinator_goes_on_where_the_log_ends() -> None:
    desk = trained(2)
    samples = desk.core.totals.samples
    desk.restart()
    core = desk.core
    assert (core.version, core.watermark.low, core.generation) == (2, 2, 2)
    assert core.totals.samples == samples > 0
    assert core.placement is not None
    assert [p.spec.number for p in core.phases.phases] == [0]
    assert sent(desk.turn("worker-0"), Refused)[0].rule == "unknown", "it must say what it holds first"
    worker_back(desk, "worker-0")
    assert sent(desk.turn("worker-0"), Grant) == [], "the servers have not been heard yet"
    for server in desk.servers:
        effects = server_back(desk, server)
        assert len(sent(effects, Plan, server)) == 1
    worker_back(desk, "worker-1")
    desk.now += 1.0
    desk.wrote(core.tick(desk.now))
    (grant,) = sent(desk.turn("worker-1"), Grant)
    assert (grant.step, grant.fence.generation) == (2, 2)


def test_rule_an_acknowledged_commit_is_told_again_to_a_server_that_missed_it() -> None:
    desk = trained(2)
    desk.restart()
    assert sent(server_back(desk, "server-0", applied=0), Committed) == [], "not before it is known what to keep"
    effects = server_back(desk, "server-1", applied=2)
    assert [c.commit.version for c in sent(effects, Committed, "server-0")] == [1, 2]
    assert sent(effects, Committed, "server-1") == []


def test_rule_leases_that_are_reported_again_get_a_full_new_term() -> None:
    desk = trained(1)
    first, second = desk.lease("worker-0"), desk.lease("worker-1")
    assert (first.step, second.step) == (1, 1)
    desk.restart()
    for server in desk.servers:
        server_back(desk, server)
    worker_back(desk, "worker-0", held(first))
    worker_back(desk, "worker-1", held(second, sealed=True))
    assert {lease.slot.slot for lease in desk.core.leases.held_by("worker-0")} == {0}
    grants = sent(desk.turn("worker-1"), Grant)
    assert [g.step for g in grants] == [2], "both slots of step 1 are held"
    desk.seal("worker-0", first)
    for server in desk.servers[:1]:
        assert written(desk.ready(server, 1, first.fence, second.fence), Commit) == []
    (commit,) = written(desk.ready("server-1", 1, first.fence, second.fence), Commit)
    assert commit.fences == (first.fence, second.fence)


def test_a_registration_that_is_repeated_does_not_take_back_what_the_worker_has_let_go() -> None:
    desk = trained(1)
    grant = desk.lease("worker-0")
    desk.restart()
    for server in desk.servers:
        server_back(desk, server)
    intro = Register(desk.req(), "worker", "worker-0", 1, "here", None, desk.job, leases=(held(grant),), progress=0)
    desk.say("worker-0", intro)
    assert grant.fence in desk.core.leases
    desk.now += 100.0
    again = desk.lease("worker-0")
    desk.say("worker-0", intro)
    assert grant.fence not in desk.core.leases
    assert (again.step, again.slot) == (grant.step, grant.slot)


def test_a_declaration_that_another_coordinator_answered_is_told_with_the_next_turn() -> None:
    """The worker had registered when the last word of the one before arrived."""
    desk = validating(slots=1, rewinds=True)
    desk.restart()
    for server in desk.servers:
        server_back(desk, server)
    worker_back(desk, "worker-0", declared=0)
    worker_back(desk, "worker-1", declared=1)
    desk.now += 1.0
    desk.finish_step(0)
    assert sent(desk.turn("worker-0"), EvalGrant) == [], "as far as is known it does not know the validator"
    assert len(sent(desk.turn("worker-1"), EvalGrant)) == 1, "others do not wait for it"
    assert len(sent(desk.turn("worker-0", declared=1), EvalGrant)) == 1


def test_a_worker_that_does_not_know_a_validator_does_not_hold_up_those_behind_it() -> None:
    desk = validating(data_len=2, slots=1, rewinds=True)
    desk.core.declared["worker-0"] = 0
    grant = desk.lease("worker-0")
    assert desk.seal("worker-0", grant) == desk.turn("worker-1") == [], "both wait, worker-0 first"
    effects = desk.ready("server-0", 0, grant.fence)
    assert [e.to for e in effects if sent([e], EvalGrant)] == ["worker-1"]  # type: ignore[union-attr]


def test_a_lease_that_somebody_else_has_is_not_adopted() -> None:
    desk = trained(1)
    grant = desk.lease("worker-0")
    desk.restart()
    for server in desk.servers:
        server_back(desk, server)
    desk.now += 1.0
    worker_back(desk, "worker-1")
    again = desk.lease("worker-1")
    assert (again.step, again.slot) == (grant.step, grant.slot)
    worker_back(desk, "worker-0", held(grant))
    assert list(desk.core.leases.held_by("worker-0")) == []
    assert grant.fence not in desk.core.leases
    worker_back(desk, "worker-0", HeldLease(1, 1, Fence(2, 99)))
    assert Fence(2, 99) not in desk.core.leases, "only leases of earlier coordinators are adopted"


def test_rule_a_choice_of_attempts_is_durable_before_a_server_hears_it() -> None:
    desk = Desk(servers=2, deterministic=False, rewinds=True).start(data_len=80).initialise()
    grant = desk.lease("worker-0")
    desk.seal("worker-0", grant)
    effects: list[Effect] = []
    for server in desk.servers:
        effects += desk.say(server, Receipt(0, 1, 0, grant.slot, grant.fence))
    kinds = [type(e).__name__ for e in effects]
    assert kinds.index("Write") < kinds.index("Send")
    assert len(written(effects, ChoiceFact)) == 1
    assert [c.fence for c in sent(effects, Choose)] == [grant.fence] * 2
    desk.restart()
    effects = [e for server in desk.servers for e in server_back(desk, server)]
    assert {c.fence for c in sent(effects, Choose)} == {grant.fence}, "whoever had not heard it hears it now"
    desk.now += 1.0
    worker_back(desk, "worker-1")
    assert desk.lease("worker-1").slot == 1, "the chosen slot is not computed again"


def test_choices_on_steps_that_the_job_ended_without_are_forgotten() -> None:
    desk = Desk(servers=2, deterministic=False, rewinds=True).start(data_len=80).initialise()
    grant = desk.lease("worker-0")
    desk.seal("worker-0", grant)
    for server in desk.servers:
        desk.say(server, Receipt(0, 1, 0, grant.slot, grant.fence))
    desk.say("worker-0", Stop(desk.req(), "enough", 0, True))
    assert (desk.core.state, desk.core.version) == ("finished", 0)
    desk.restart()
    effects = [e for server in desk.servers for e in server_back(desk, server)]
    assert sent(effects, Choose) == []
    assert desk.core.gate.steps() == []


def test_a_stop_and_the_end_of_a_phase_survive_a_restart() -> None:
    desk = trained(1)
    desk.say("worker-0", Stop(desk.req(), "enough", 1))
    desk.restart()
    assert desk.core.phases.phases[0].end == 2
    for server in desk.servers:
        server_back(desk, server)
    desk.now += 1.0
    for worker in desk.workers:
        worker_back(desk, worker)
    desk.finish_step(1)
    assert (desk.core.state, desk.core.version, desk.core.stop_reason) == ("finished", 2, "enough")
    desk.restart()
    assert (desk.core.state, desk.core.version) == ("finished", 2)
    effects = [e for server in desk.servers for e in server_back(desk, server)]
    assert {p.final for p in sent(effects, Plan)} == {2}
    desk.now += 20.0
    worker_back(desk, "worker-0")
    (over,) = sent(desk.turn("worker-0"), PhaseOver)
    assert (over.version, over.finished) == (2, True)


def test_a_validation_that_was_under_way_is_run_again_on_the_same_version() -> None:
    desk = validating(servers=2, rewinds=True)
    desk.finish_step(0)
    assert [r.version for r in desk.core.evaluations.rounds.values()] == [1]
    desk.restart()
    for server in desk.servers:
        effects = server_back(desk, server, kept=(1,))
        assert sent(effects, Unpin) == []
    assert [r.version for r in desk.core.evaluations.rounds.values()] == [1]
    worker_back(desk, "worker-0", declared=1)
    desk.now += 1.0
    (grant,) = sent(desk.turn("worker-0"), EvalGrant)
    assert (grant.version, grant.validator) == (1, 0)


@pytest.mark.parametrize("event", ["nothing", "restart", "rewind"])
def test_rule_whoever_leaves_a_phase_is_told_the_metrics_of_its_end(event: str) -> None:
    """A script may decide by them: one that lags behind, or begins again, must decide as the others did."""
    desk = Desk(servers=2, slots=1, rewinds=True, checkpoint_steps=2).start(begin=False)
    for worker in desk.workers:
        desk.say(worker, Declare(desk.req(), ValidatorSpec(0, "accuracy", 100, 4, 4)))
        desk.begin(worker, data_len=2)

    def validate(phase: int, total: float) -> PhaseOver:
        (slot,) = sent(desk.turn("worker-0", phase=phase), EvalGrant)
        effects = desk.evaluated("worker-0", slot, {"accuracy": Sums(total, 4.0)}, phase=phase)
        (over,) = sent(effects, PhaseOver)
        return over

    desk.initialise().finish_step(0)
    assert validate(0, 1.0).metrics == {"accuracy": 0.25}
    desk.begin("worker-0", number=1, data_len=2)
    desk.finish_step(1, phase=1)
    made = save(desk, 2).checkpoint
    desk.core.completed(made.folder, "", desk.now)
    assert validate(1, 3.0).metrics == {"accuracy": 0.75}
    if event == "restart":
        desk.restart()
    elif event == "rewind":
        desk.restart([made], resume=made.folder)
    if event != "nothing":
        for server in desk.servers:
            server_back(desk, server)
        worker_back(desk, "worker-1", declared=1)
        desk.now += 1.0
    effects = desk.turn("worker-1", incarnation=desk.core.incarnation)
    for slot in sent(effects, EvalGrant):  # the last version of the second phase is validated once more
        effects = desk.evaluated("worker-1", slot, {"accuracy": Sums(3.0, 4.0)}, incarnation=desk.core.incarnation)
    assert [over.metrics for over in sent(effects, PhaseOver)] == [{"accuracy": 0.25}]


@pytest.mark.parametrize("restarted", [False, True])
def test_rule_what_was_evaluated_after_the_last_loop_is_not_told_at_its_end(restarted: bool) -> None:
    desk = Desk(servers=2, slots=1, rewinds=True).start(begin=False)
    for worker in desk.workers:
        desk.say(worker, Declare(desk.req(), ValidatorSpec(0, "accuracy", 100, 4, 4)))
        desk.say(worker, Declare(desk.req(), ValidatorSpec(1, "test", 0, 4, 4)))
        desk.begin(worker, data_len=2)
    desk.initialise().finish_step(0)
    (slot,) = sent(desk.turn("worker-0"), EvalGrant)
    (over,) = sent(desk.evaluated("worker-0", slot, {"accuracy": Sums(1.0, 4.0)}), PhaseOver)
    (slot,) = sent(desk.turn("worker-0", evaluation=1), EvalGrant)
    desk.evaluated("worker-0", slot, {"more": Sums(4.0, 4.0)}, evaluation=1)
    if restarted:
        desk.restart()
        for server in desk.servers:
            server_back(desk, server)
        worker_back(desk, "worker-1", declared=2)
        desk.now += 1.0
    (late,) = sent(desk.turn("worker-1"), PhaseOver)
    assert late.metrics == over.metrics == {"accuracy": 0.25}


def test_the_newest_result_of_a_validation_is_that_of_the_newest_version() -> None:
    """Rounds may end in another order than they began, and are in the log in that order."""
    desk = trained(2)
    for version in (2, 1):
        desk.disk.write(Write(EvaluationRow(0, version, version, "accuracy", {"accuracy": version / 2}, 0)))
    desk.restart()
    assert desk.core.evaluations.latest == {0: (2, {"accuracy": 1.0})}


def test_silence_counts_from_the_restart_on() -> None:
    desk = trained(1)
    desk.restart()
    timeout = desk.spec.heartbeat_timeout_s
    assert desk.core.tick(timeout - 0.1) == []
    assert not desk.core.rewinding
    desk.core.tick(timeout + 0.2)
    assert desk.core.rewinding, "a server that never came back is lost"


def test_a_beat_of_a_server_that_was_not_heard_yet_asks_it_to_register() -> None:
    from paceline.messages import Beat

    desk = trained(1)
    desk.restart()
    (ack,) = sent(desk.say("server-0", Beat("server-0", 0, 1, 1)), BeatAck)
    assert not ack.known
    server_back(desk, "server-0")
    (ack,) = sent(desk.say("server-0", Beat("server-0", 0, 1, 1)), BeatAck)
    assert ack.known


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_due_every_n_versions_and_one_at_a_time() -> None:
    desk = trained(0, checkpoint_steps=2)
    assert [c.save for c in sent(desk.finish_step(0), Committed)] == [False, False]
    assert [c.save for c in sent(desk.finish_step(1), Committed)] == [True, True]
    desk.finish_step(2)
    assert [c.save for c in sent(desk.finish_step(3), Committed)] == [False, False], "one is under way"
    complete = save(desk, 2)
    at = complete.checkpoint.position
    assert (complete.checkpoint.folder, at.version, at.watermark) == ("i0000-v0000000002", 2, 2)
    assert complete.chains == tuple(bytes([b.index]).hex() for b in BLOCKS)
    assert len(complete.files) == 2
    assert desk.core.checkpoint is None, "not before its marker is written"
    effects = desk.wrote(desk.core.completed(complete.checkpoint.folder, "", desk.now))
    assert desk.core.checkpoint == complete.checkpoint
    assert [o.version for o in sent(effects, SaveOver)] == [2, 2]
    assert [c.save for c in sent(desk.finish_step(4), Committed)] == [True, True]


def test_a_problem_keeps_the_old_checkpoint_and_warns() -> None:
    desk = trained(2, checkpoint_steps=2)
    complete = save(desk, 2)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    desk.finish_step(2)
    desk.finish_step(3)
    effects = desk.say("server-0", Saved(0, 1, 4, (), (), "disk full"))
    assert [o.version for o in sent(effects, SaveOver)] == [4, 4]
    assert "disk full" in desk.core.warning
    assert "i0000-v0000000002 is kept" in desk.core.warning
    assert desk.core.checkpoint == complete.checkpoint
    assert desk.core.settled
    assert len(sent(desk.say("server-1", Saved(0, 1, 4, (), ())), SaveOver, "server-1")) == 1


def test_old_checkpoints_go_when_a_newer_one_is_complete() -> None:
    desk = trained(0, checkpoint_steps=1, keep_checkpoints=2)
    dropped = []
    for step in range(4):
        desk.finish_step(step)
        complete = save(desk, step + 1)
        dropped.append(complete.drop)
        desk.core.completed(complete.checkpoint.folder, "", desk.now)
    assert dropped == [(), (), ("i0000-v0000000001",), ("i0000-v0000000002",)]
    assert [c.position.version for c in desk.core.checkpoints] == [3, 4]


def test_the_last_version_goes_to_a_checkpoint_when_the_job_ends() -> None:
    desk = trained(3, checkpoint_steps=100)
    effects = desk.core.finish(desk.now)
    assert [(c.commit.version, c.save) for c in sent(effects, Committed)] == [(3, True), (3, True)]
    assert not desk.core.settled
    complete = save(desk, 3)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    assert desk.core.settled
    assert desk.core.finish(desk.now) == [], "there is one of it now"


# ---------------------------------------------------------------- the job goes back


def rewound(steps: int = 3) -> tuple[Desk, list[Effect]]:
    """A checkpoint of version 2 exists, `steps` are committed, and server-1 dies and is started again."""
    desk = trained(2, checkpoint_steps=2)
    complete = save(desk, 2)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    for step in range(2, steps):
        desk.finish_step(step)
    desk.servers = ["server-0", "server-1/2"]
    intro = Register(desk.req(), "server", "server-1", 2, "here", "elsewhere")
    return desk, desk.say("server-1/2", intro)


def test_rule_a_dead_server_means_a_new_incarnation_from_the_last_checkpoint() -> None:
    desk, effects = rewound(3)
    (fact,) = written(effects, IncarnationFact)
    assert fact.position is not None
    assert (fact.number, fact.folder, fact.position.version) == (1, "i0000-v0000000002", 2)
    assert (desk.core.version, desk.core.watermark.low, desk.core.incarnation) == (2, 2, 1)
    assert (desk.core.rewinds, desk.core.recomputed) == (1, 1)
    assigns = sent(effects, Assign)
    assert [(a.incarnation, a.folder, a.version, a.watermark, a.placement.epoch) for a in assigns] == [
        (1, "i0000-v0000000002", 2, 2, 2)
    ] * 2
    kinds = [type(e).__name__ for e in effects]
    assert kinds.index("Write") < kinds.index("Send")
    assert sent(effects, Abort) == [], "a worker in the loop that goes on stays"
    (grant,) = sent(desk.turn("worker-0"), Grant)
    assert (grant.step, grant.incarnation, grant.epoch) == (2, 1, 2)


def test_rule_reports_of_the_incarnation_before_count_for_nothing() -> None:
    desk, _ = rewound(3)
    assert written(desk.say("server-0", Ready(0, 1, 2, (fence(1), fence(2)), 0, 0, ())), Commit) == []
    grant = desk.lease("worker-0", incarnation=1)
    desk.seal("worker-0", grant, incarnation=0)
    assert 2 not in desk.core.gate, "its seal speaks of another history"


def test_without_a_checkpoint_the_job_begins_again_and_so_do_its_workers() -> None:
    desk = trained(2)
    for worker in desk.workers:
        desk.turn(worker)
    intro = Register(desk.req(), "server", "server-1", 2, "here", "elsewhere")
    effects = desk.say("server-1/2", intro)
    (fact,) = written(effects, IncarnationFact)
    assert fact.position is None
    assert {a.kind for a in sent(effects, Abort)} == {"rewound"}
    assert desk.core.version == -1
    assert sent(worker_back(desk, "worker-0", progress=0), Abort)[0].kind == "rewound"
    fresh = desk.say("worker-0/2", Register(desk.req(), "worker", "worker-0", 2, "here", None, desk.job))
    assert len(sent(fresh, Welcome)) == 1


def test_workers_beyond_the_rewound_phase_must_start_again() -> None:
    desk = trained(2, checkpoint_steps=2)
    complete = save(desk, 2)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    for step in range(2, 20):
        desk.finish_step(step)
    assert desk.core.phases.open is None
    assert len(sent(desk.turn("worker-0"), PhaseOver)) == 1
    effects = desk.say("server-1/2", Register(desk.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert [e.kind for e in sent(effects, Abort, "worker-0")] == ["rewound"]
    assert sent(effects, Abort, "worker-1") == [], "it had not heard that the phase is over"
    assert desk.core.phases.open is not None


def test_a_phase_that_began_at_the_checkpoint_begins_there_again() -> None:
    desk = Desk(servers=2, rewinds=True, checkpoint_s=0.5).start(data_len=8).initialise()
    desk.now = 5.0
    desk.finish_step(0)
    complete = save(desk, 1)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    desk.now = 10.0
    effects = desk.finish_step(1)
    assert [c.save for c in sent(effects, Committed)] == [True, True]
    complete = save(desk, 2)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    for worker in desk.workers:
        assert len(sent(desk.turn(worker), PhaseOver)) == 1
        spec = PhaseSpec(1, 12, 2, None, 1, True, False)
        assert len(sent(desk.say(worker, BeginPhase(desk.req(), spec)), PhaseBegun)) == 1
    desk.servers = ["server-0", "server-1/2"]
    effects = desk.say("server-1/2", Register(desk.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert sent(effects, Abort) == []
    assert [p.spec.number for p in desk.core.phases.phases] == [0, 1]
    (grant,) = sent(desk.turn("worker-0", phase=1), Grant)
    assert (grant.step, grant.incarnation) == (2, 1)
    desk.restart([complete.checkpoint])
    assert [p.spec.number for p in desk.core.phases.phases] == [0, 1], "and that is durable"


def test_a_damaged_checkpoint_is_passed_over() -> None:
    desk = trained(0, checkpoint_steps=1)
    for step in range(2):
        desk.finish_step(step)
        complete = save(desk, step + 1)
        desk.core.completed(complete.checkpoint.folder, "", desk.now)
    desk.servers = ["server-0", "server-1/2"]
    desk.say("server-1/2", Register(desk.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert desk.core.base is not None
    assert desk.core.base.position.version == 2
    effects = desk.say("server-0", NotLoaded(1, 2, "i0000-v0000000002", "a shard is damaged"))
    (fact,) = written(effects, IncarnationFact)
    assert (fact.number, fact.folder) == (2, "i0000-v0000000001")
    assert "damaged" in desk.core.warning
    assert desk.core.version == 1
    assigns = sent(effects, Assign)
    assert [a.folder for a in assigns] == ["i0000-v0000000001"] * 2, "all servers are there: nobody need come first"
    assert sent(desk.turn("worker-0"), Grant)[0].incarnation == 2


def test_an_answer_from_before_a_rewind_is_not_repeated_while_there_is_no_placement() -> None:
    desk = trained(2, checkpoint_steps=1)
    desk.core.completed(save(desk, 1).checkpoint.folder, "", desk.now)
    asked = Turn(desk.req(), 0, 0)
    assert len(sent(desk.say("worker-0", asked), Grant)) == 1
    desk.say("engine", Exited(desk.req(), "server-1", 1, -9))
    assert desk.core.placement is None
    assert desk.say("worker-0", asked) == [], "that lease is of another history"


def test_rewind_survives_the_coordinator() -> None:
    desk, _ = rewound(3)
    checkpoints = desk.core.checkpoints
    desk.restart(checkpoints)
    core = desk.core
    assert (core.incarnation, core.version, core.rewinds, core.recomputed) == (1, 2, 1, 1)
    assert core.placement is not None
    assert core.placement.epoch == 2
    effects = server_back(desk, "server-0", incarnation=0, epoch=1, applied=3)
    (assign,) = sent(effects, Assign, "server-0")
    assert (assign.incarnation, assign.folder) == (1, "i0000-v0000000002")


def test_a_server_that_knows_more_than_the_log_is_not_believed() -> None:
    desk = trained(2)
    desk.restart()
    effects = server_back(desk, "server-0", applied=9)
    assert len(written(effects, IncarnationFact)) == 1


def test_resume_begins_from_the_named_checkpoint() -> None:
    desk = trained(2, checkpoint_steps=2)
    complete = save(desk, 2)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    desk.finish_step(2)
    desk.restart([complete.checkpoint], resume="i0000-v0000000002", servers=1)
    assert (desk.core.version, desk.core.incarnation, desk.core.rewinds) == (2, 1, 0)
    effects = desk.say("new", Register(desk.req(), "server", "server-0", 9, "here", "at"))
    (assign,) = sent(effects, Assign)
    assert set(assign.placement.owners) == {"new"}, "with another number of servers"
    assert len(written(effects, PlacementFact)) == 1


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_rule_a_resumed_job_places_nothing_on_servers_of_the_run_before(servers: int) -> None:
    desk = Desk(servers=3, rewinds=True, replicas=1, checkpoint_steps=2).start(data_len=80).initialise()
    desk.finish_step(0)
    desk.finish_step(1)
    (saved,) = desk.core.checkpoints or [save(desk, 2).checkpoint]
    desk.restart([saved], resume=saved.folder, servers=servers, replicas=0)
    desk.say("coordinator's engine", Scale(desk.req(), 2, servers))
    for number in range(servers):
        assert desk.core.placement is None, "not all are there"
        desk.say(f"new-{number}", Register(desk.req(), "server", f"server-{number}", 9, "here", "at"))
    assert desk.core.placement is not None
    assert set(desk.core.placement.addresses) == {f"new-{number}" for number in range(servers)}
    assert desk.core.draining == frozenset()
    assert (desk.core.rewinds, desk.core.failovers) == (0, 0)


def test_without_rewinds_a_lost_server_ends_the_job() -> None:
    desk = Desk(servers=2).start(data_len=80).initialise()
    desk.say("server-1/2", Register(desk.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert desk.core.failure is not None
    assert "no other copy" in desk.core.failure.reason


# ---------------------------------------------------------------- late and slow workers


def busy(desk: Desk, worker: str, seconds: float) -> None:
    desk.core.pace.note(worker, seconds, desk.now)
    desk.core.pace.refresh()


def test_a_late_slot_is_leased_twice_and_the_first_attempt_counts() -> None:
    desk = Desk(workers=3, slots=1).start(data_len=40).initialise()
    for worker in desk.workers:
        busy(desk, worker, 0.1)
    late = desk.lease("worker-0")
    desk.lease("worker-1")  # the next step, one early
    assert sent(desk.turn("worker-2"), Grant) == []
    desk.now = 0.4
    assert sent(desk.core.tick(desk.now), Grant) == [], "not late yet"
    desk.now = 1.2
    (again,) = sent(desk.core.tick(desk.now), Grant, "worker-2")
    assert (again.step, again.slot) == (late.step, late.slot)
    assert again.fence > late.fence
    desk.seal("worker-2", again)
    (commit,) = written(desk.ready("server-0", 0, again.fence), Commit)
    assert commit.fences == (again.fence,)
    assert desk.core.totals.wasted_slots == 0
    desk.seal("worker-0", late)
    assert desk.core.totals.wasted_slots == 1, "the late attempt was for nothing, and is counted"


def test_a_late_slot_goes_to_a_worker_that_only_waits_for_it() -> None:
    """Workers are given slots one step early: those who cannot begin are taken off them."""
    desk = Desk(workers=2, slots=1).start(data_len=40).initialise()
    for worker in desk.workers:
        busy(desk, worker, 0.1)
    late, early = desk.lease("worker-0"), desk.lease("worker-1")
    assert (late.step, early.step) == (0, 1)
    desk.now = 0.1
    desk.core.tick(desk.now)
    desk.now = 1.2
    (revoke,) = sent(desk.core.tick(desk.now), Revoke, "worker-1")
    assert revoke.fence == early.fence
    again = desk.lease("worker-1")
    assert (again.step, again.slot) == (0, 0)
    desk.now = 1.3
    assert sent(desk.core.tick(desk.now), Revoke) == [], "once"


def test_a_slow_worker_does_not_get_the_last_slot() -> None:
    desk = Desk(workers=2, slots=3).start(data_len=60).initialise()
    busy(desk, "worker-0", 0.1)
    busy(desk, "worker-1", 1.0)
    first = desk.lease("worker-0")
    assert sent(desk.turn("worker-1"), Grant) == [], "the fast one ends both others sooner"
    effects = desk.seal("worker-0", first)
    assert [g.slot for g in sent(effects, Grant, "worker-0")] == [1]
    assert sent(effects, Grant, "worker-1") == []
    desk.now = 1.7
    (help_,) = sent(desk.core.tick(desk.now), Grant, "worker-1")
    assert help_.step == 0, "when the fast one is late it is not counted on"


def test_rule_a_worker_that_was_held_back_for_long_is_tried_again() -> None:
    pace = Pace()
    pace.note("slow", 2.0, 0.0)
    pace.note("fast", 0.01, 0.0)
    pace.refresh()
    assert pace.is_slow("slow", 9.0)
    assert not pace.is_slow("slow", 11.0), "nobody has measured it for long"
    pace.note("slow", 0.012, 11.5)
    assert pace.of("slow") == 0.012, "what it was then does not count"
    assert not pace.is_slow("slow", 11.6)


def test_a_slow_worker_gets_slots_while_there_are_enough() -> None:
    desk = Desk(workers=2, slots=30, hold=40).start(data_len=600).initialise()
    busy(desk, "worker-0", 0.1)
    busy(desk, "worker-1", 1.0)
    assert len(sent(desk.turn("worker-1"), Grant)) == 1


def test_late_mismatch_refuses_the_newcomer_only() -> None:
    desk = trained(1)
    other = msgspec.structs.replace(desk.job, seed=99)
    effects = desk.say("late", Register(desk.req(), "worker", "worker-j1", 5, "here", None, other))
    assert sent(effects, Abort, "late")[0].kind == "script"
    assert desk.core.failure is None


def test_a_turn_in_a_phase_that_is_no_more_sends_the_worker_back() -> None:
    desk = trained(1)
    effects = desk.say("worker-0", Turn(desk.req(), 5, 0))
    assert sent(effects, Abort, "worker-0")[0].kind == "rewound"


def test_rule_nothing_is_leased_or_committed_before_every_server_is_heard() -> None:
    """What servers keep, and so what may be read, is not known before that."""
    desk = trained(1)
    first, second = desk.lease("worker-0"), desk.lease("worker-1")
    desk.restart()
    desk.now += 5.0
    server_back(desk, "server-0")
    worker_back(desk, "worker-0", held(first, sealed=True))
    worker_back(desk, "worker-1", held(second, sealed=True))
    assert sent(desk.turn("worker-0"), Grant) == []
    effects: list[Effect] = []
    for server in desk.servers:
        effects += desk.ready(server, 1, first.fence, second.fence)
    assert written(effects, Commit) == []
    effects = server_back(desk, "server-1")
    assert len(written(effects, Commit)) == 1, "now it is, by what was said meanwhile"
    assert len(sent(effects, Grant)) == 1


def test_rule_a_server_that_cannot_load_says_so_and_serves_nothing() -> None:
    kit = ServerKit()
    kit.store.damaged = "i0000-v0000000007"
    placement = Placement(2, ("server-0",) * len(BLOCKS), {"server-0": "here"})
    assign = Assign(1, 1, placement, model(), BLOCKS, False, folder="i0000-v0000000007", version=7)
    (told,) = sent(kit.tell(assign), NotLoaded)
    assert (told.incarnation, told.epoch, told.folder) == (1, 2, "i0000-v0000000007")
    assert "damaged" in told.problem
    assert kit.say(Pull(9, 1, 2, 7)) == []
    assert sent(kit.core.tick(99.0), NotLoaded) == [told], "until it is told where to go instead"
    older = msgspec.structs.replace(assign, incarnation=2, folder="i0000-v0000000003", version=3)
    kit.tell(older)
    assert (kit.core.incarnation, kit.core.applied) == (2, 3)
    assert sent(kit.core.tick(999.0), NotLoaded) == []


def test_a_server_freezes_the_version_that_its_commit_says_and_tells_until_it_is_heard() -> None:
    kit = ServerKit(segment(slots=1, end_step=10, data_len=20))
    kit.push(0, 0, 5)
    row = Commit(0, 1, 0, (fence(5),), HYPER, 1.0, False, 0, 0)
    kit.tell(Committed(1, kit.core.epoch, row, save=True))
    assert kit.store.saved == [1]
    assert kit.core.saving == 1
    chains = dict(kit.core.chains)
    kit.push(1, 0, 6, base=1)
    kit.commit(2, 1, 6)
    assert kit.core.chains != chains, "training goes on"
    (saved,) = sent(kit.core.saved(1, (), ""), Saved)
    assert dict(saved.chains) == chains, "the chains are those of the frozen version"
    assert sent(kit.core.tick(9.0), Saved) == [saved]
    kit.tell(SaveOver(1, 0, 1))
    assert kit.core.saving is None
    assert sent(kit.core.tick(99.0), Saved) == []
    assert kit.core.saved(1, (), "") == [], "given up: nobody is told"


def test_rule_a_worker_that_enters_an_incarnation_reads_everything_anew() -> None:
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "bsp", 1, 1)))
    owners = ("server-0", "server-1")
    core.place(Prepared(0, 1, 0, Placement(1, owners, dict.fromkeys(owners, "at"))))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20), True)
    pulls = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    for server, pull in zip(owners, pulls, strict=True):
        core.handle(server, PullReply(pull.req, 0, 4, 4, ()), (), 0.0)
    core.push(0.0, {s: ((), (), Seal(1.0, (), ())) for s in owners})
    core.sealed(0.0, 1.0, HYPER, {}, 0.1)
    assert len(core.unacked) == 2
    again = Grant(turn_of(core).req, 1, 1, 2, 4, 0, 1, fence(2), segment(slots=1, end_step=20), True)
    (asked,) = sent(core.handle("coordinator", again, (), 0.0), PlacementRequest)
    assert len(core.unacked) == 0, "pushes of the other history are forgotten"
    new = Placement(2, owners, dict.fromkeys(owners, "at"))
    effects = core.handle("coordinator", Prepared(asked.req, 1, 1, new), (), 0.0)
    assert [(p.exact, p.have, p.incarnation) for p in sent(effects, Pull)] == [(4, -1, 1)] * 2
    assert core.reconnected(0.0)[0].message.leases == (HeldLease(4, 0, fence(2), None, 2),)  # type: ignore[attr-defined]


def test_interchangeable_attempts_that_servers_used_otherwise_are_in_the_log() -> None:
    desk = trained(0)
    first, second = desk.lease("worker-0"), desk.lease("worker-1")
    desk.seal("worker-0", first)
    desk.seal("worker-1", second)
    assert desk.core.placement is not None
    desk.ready("server-0", 0, first.fence, second.fence)
    other = fence(77)
    (commit,) = written(desk.ready("server-1", 0, first.fence, other), Commit)
    blocks = tuple(b for b, owner in enumerate(desk.core.placement.owners) if owner == "server-1")
    assert commit.fences == (first.fence, second.fence)
    assert commit.variants == ((blocks, (first.fence, other)),)


def test_a_manifest_that_could_not_be_written_is_no_checkpoint() -> None:
    desk = trained(2, checkpoint_steps=2)
    complete = save(desk, 2)
    effects = desk.core.completed(complete.checkpoint.folder, "disk full", desk.now)
    assert desk.core.checkpoint is None
    assert "there is no older one" in desk.core.warning
    assert [o.version for o in sent(effects, SaveOver)] == [2, 2]


def test_rule_nothing_is_released_before_every_server_is_heard() -> None:
    from paceline.messages import Beat

    desk = trained(2)
    desk.restart()
    server_back(desk, "server-0", kept=(1,))
    assert sent(desk.say("server-0", Beat("server-0", 0, 1, 2, 1, (1,))), Unpin) == []
    server_back(desk, "server-1", kept=(1,))
    assert [u.version for u in sent(desk.say("server-0", Beat("server-0", 0, 1, 2, 1, (1,))), Unpin)] == [1]


def test_rule_an_attempt_that_was_given_back_is_not_reported_as_sealed() -> None:
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "bsp", 1, 1)))
    core.place(Prepared(0, 1, 0, Placement(1, ("server-0",), {"server-0": "at"})))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20), True)
    (pull,) = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    core.handle("server-0", PullReply(pull.req, 0, 4, 4, ()), (), 0.0)
    (push,) = core.push(0.0, {"server-0": ((), (), None)})
    core.handle("server-0", Refused(push.message.req, "stale", ""), (), 0.0)  # type: ignore[attr-defined]
    core.push(0.0, {"server-0": ((), (), Seal(1.0, (), ()))})
    core.sealed(0.0, 1.0, HYPER, {}, 0.1)
    (intro,) = sent(core.reconnected(0.0), Register)
    assert intro.leases == ()


def test_rule_what_is_given_back_while_a_coordinator_is_told_of_it_is_given_back_once_more() -> None:
    """It answers at once, of a lease that it does not know yet; then it hears that the slot was sealed."""
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "bsp", 1, 1)))
    core.place(Prepared(0, 1, 0, Placement(1, ("server-0",), {"server-0": "at"})))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20), True)
    (pull,) = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    core.handle("server-0", PullReply(pull.req, 0, 4, 4, ()), (), 0.0)
    (push,) = core.push(0.0, {"server-0": ((), (), Seal(1.0, (), ()))})
    core.sealed(0.0, 1.0, HYPER, {}, 0.1)
    (intro,) = sent(core.reconnected(0.0), Register)
    assert [held.fence for held in intro.leases] == [fence(1)]
    refused = Refused(push.message.req, "stale", "")  # type: ignore[attr-defined]
    (first,) = sent(core.handle("server-0", refused, (), 0.0), GiveBack)
    core.handle("coordinator", Ok(first.req), (), 0.0)
    (again,) = sent(core.handle("coordinator", Welcome(intro.req, 2, 0, None, 0.5, 3.0), (), 0.0), GiveBack)
    assert again.fence == fence(1)
    core.handle("coordinator", Ok(first.req), (), 0.0)  # to what was said before
    assert [g.fence for g in sent(core.tick(5.0), GiveBack)] == [fence(1)]
    core.handle("coordinator", Ok(again.req), (), 5.0)
    assert sent(core.tick(10.0), GiveBack) == []


def test_a_coordinator_that_dies_between_a_rewind_and_the_placement_validates_where_it_goes_on() -> None:

    desk = validating(servers=2, rewinds=True, checkpoint_steps=1)
    desk.finish_step(0)
    complete = save(desk, 1)
    desk.core.completed(complete.checkpoint.folder, "", desk.now)
    desk.wrote(desk.core.lost("server-1", "gone", desk.now))
    assert desk.core.rewinding
    desk.restart([complete.checkpoint])
    assert desk.core.rewinding
    assert [r.version for r in desk.core.evaluations.rounds.values()] == [1]


def test_versions_that_a_server_kept_before_a_rewind_are_not_validated_after_it() -> None:
    """It was cut off: it has not heard that the job went back when another coordinator asks it what it has."""
    desk = validating(servers=2, rewinds=True)
    desk.finish_step(0)
    assert [r.version for r in desk.core.evaluations.rounds.values()] == [1]
    desk.wrote(desk.core.lost("server-1", "gone", desk.now))
    desk.say("server-1/2", Register(desk.req(), "server", "server-1", 2, "here", "there"))
    assert (desk.core.incarnation, desk.core.version, desk.core.rewinding) == (1, -1, False)
    desk.restart()
    server_back(desk, "server-1/2", applied=-1)
    server_back(desk, "server-0", incarnation=0, epoch=1, applied=1, kept=(1,))
    assert not desk.core.awaited
    assert desk.core.evaluations.rounds == {}


def test_the_initial_weights_are_the_last_version_of_a_loop_without_data_after_a_restart_too() -> None:
    desk = Desk(servers=2).start(data_len=0).initialise()
    desk.begin("worker-0", number=1)
    desk.finish_step(0, phase=1)
    assert desk.core.version == 1
    desk.restart()
    for server in desk.servers:
        server_back(desk, server, kept=(0,))
    for worker in desk.workers:
        worker_back(desk, worker)
    assert [over.version for over in desk.over(desk.turn("worker-1"))] == [0]
