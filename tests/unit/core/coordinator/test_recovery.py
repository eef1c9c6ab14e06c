"""A coordinator that starts again, and a job that goes back to a checkpoint."""

from __future__ import annotations

import msgspec
from tests.kit.core import BLOCKS, HYPER, CoordinatorKit, ServerKit, fence, segment, sent, written
from tests.kit.restarted_job import held, rewound, save, server_back, trained, validating, worker_back

from paceline.core.effects import EvaluationRow, IncarnationFact, PlacementFact, Write
from paceline.messages import (
    Abort,
    Assign,
    BeatAck,
    BeginPhase,
    Choose,
    Committed,
    EvalGrant,
    Exited,
    Grant,
    HeldLease,
    NotLoaded,
    PhaseBegun,
    PhaseOver,
    Plan,
    Receipt,
    Register,
    Saved,
    SaveOver,
    Stop,
    Turn,
    Unpin,
    Welcome,
)
from paceline.types import Commit, Fence, PhaseSpec

# ---------------------------------------------------------------- the coordinator starts again


def test_a_registration_that_is_repeated_does_not_take_back_what_the_worker_has_let_go() -> None:
    job = trained(1)
    grant = job.lease("worker-0")
    job.restart()
    for server in job.servers:
        server_back(job, server)
    intro = Register(job.req(), "worker", "worker-0", 1, "here", None, job.job, leases=(held(grant),), progress=0)
    job.say("worker-0", intro)
    assert grant.fence in job.core.tables.leases.live
    job.now += 100.0
    again = job.lease("worker-0")
    job.say("worker-0", intro)
    assert grant.fence not in job.core.tables.leases.live
    assert (again.step, again.slot) == (grant.step, grant.slot)


def test_a_declaration_that_another_coordinator_answered_is_told_with_the_next_turn() -> None:
    """The worker had registered when the last word of the one before arrived."""
    job = validating(slots=1, rewinds=True)
    job.restart()
    for server in job.servers:
        server_back(job, server)
    worker_back(job, "worker-0", declared=0)
    worker_back(job, "worker-1", declared=1)
    job.now += 1.0
    job.finish_step(0)
    assert sent(job.turn("worker-0"), EvalGrant) == [], "as far as is known it does not know the validator"
    assert len(sent(job.turn("worker-1"), EvalGrant)) == 1, "others do not wait for it"
    assert len(sent(job.turn("worker-0", declared=1), EvalGrant)) == 1


def test_a_worker_that_does_not_know_a_validator_does_not_hold_up_those_behind_it() -> None:
    job = validating(data_len=2, slots=1, rewinds=True)
    job.core.tables.rounds.declared["worker-0"] = 0
    grant = job.lease("worker-0")
    assert job.seal("worker-0", grant) == job.turn("worker-1") == [], "both wait, worker-0 first"
    effects = job.ready("server-0", 0, grant.fence)
    assert [e.to for e in effects if sent([e], EvalGrant)] == ["worker-1"]  # type: ignore[union-attr]


def test_a_lease_that_somebody_else_has_is_not_adopted() -> None:
    job = trained(1)
    grant = job.lease("worker-0")
    job.restart()
    for server in job.servers:
        server_back(job, server)
    job.now += 1.0
    worker_back(job, "worker-1")
    again = job.lease("worker-1")
    assert (again.step, again.slot) == (grant.step, grant.slot)
    worker_back(job, "worker-0", held(grant))
    assert list(job.core.tables.leases.live.held_by("worker-0")) == []
    assert grant.fence not in job.core.tables.leases.live
    worker_back(job, "worker-0", HeldLease(1, 1, Fence(2, 99)))
    assert Fence(2, 99) not in job.core.tables.leases.live, "only leases of earlier coordinators are adopted"


def test_choices_on_steps_that_the_job_ended_without_are_forgotten() -> None:
    job = CoordinatorKit(servers=2, deterministic=False, rewinds=True).start(data_len=80).initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    for server in job.servers:
        job.say(server, Receipt(0, 1, 0, grant.slot, grant.fence))
    job.say("worker-0", Stop(job.req(), "enough", 0, True))
    assert (job.core.state, job.core.version) == ("finished", 0)
    job.restart()
    effects = [e for server in job.servers for e in server_back(job, server)]
    assert sent(effects, Choose) == []
    assert job.core.tables.gate.steps() == []


def test_a_stop_and_the_end_of_a_phase_survive_a_restart() -> None:
    job = trained(1)
    job.say("worker-0", Stop(job.req(), "enough", 1))
    job.restart()
    assert job.core.tables.phases.phases[0].end == 2
    for server in job.servers:
        server_back(job, server)
    job.now += 1.0
    for worker in job.workers:
        worker_back(job, worker)
    job.finish_step(1)
    assert (job.core.state, job.core.version, job.core.machines.segments.stop_reason) == ("finished", 2, "enough")
    job.restart()
    assert (job.core.state, job.core.version) == ("finished", 2)
    effects = [e for server in job.servers for e in server_back(job, server)]
    assert {p.final for p in sent(effects, Plan)} == {2}
    job.now += 20.0
    worker_back(job, "worker-0")
    (over,) = sent(job.turn("worker-0"), PhaseOver)
    assert (over.version, over.finished) == (2, True)


def test_a_validation_that_was_under_way_is_run_again_on_the_same_version() -> None:
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


def test_the_newest_result_of_a_validation_is_that_of_the_newest_version() -> None:
    """Rounds may end in another order than they began, and are in the log in that order."""
    job = trained(2)
    for version in (2, 1):
        job.disk.write(Write(EvaluationRow(0, version, version, "accuracy", {"accuracy": version / 2}, 0)))
    job.restart()
    assert job.core.tables.rounds.latest == {0: (2, {"accuracy": 1.0})}


def test_a_beat_of_a_server_that_was_not_heard_yet_asks_it_to_register() -> None:
    from paceline.messages import Beat

    job = trained(1)
    job.restart()
    (ack,) = sent(job.say("server-0", Beat("server-0", 0, 1, 1)), BeatAck)
    assert not ack.known
    server_back(job, "server-0")
    (ack,) = sent(job.say("server-0", Beat("server-0", 0, 1, 1)), BeatAck)
    assert ack.known


# ---------------------------------------------------------------- checkpoints


def test_a_checkpoint_is_due_every_n_versions_and_one_at_a_time() -> None:
    job = trained(0, checkpoint_steps=2)
    assert [c.save for c in sent(job.finish_step(0), Committed)] == [False, False]
    assert [c.save for c in sent(job.finish_step(1), Committed)] == [True, True]
    job.finish_step(2)
    assert [c.save for c in sent(job.finish_step(3), Committed)] == [False, False], "one is under way"
    complete = save(job, 2)
    at = complete.checkpoint.position
    assert (complete.checkpoint.folder, at.version, at.watermark) == ("i0000-v0000000002", 2, 2)
    assert complete.chains == tuple(bytes([b.index]).hex() for b in BLOCKS)
    assert len(complete.files) == 2
    assert job.core.machines.checkpoints.newest is None, "not before its marker is written"
    effects = job.wrote(job.core.completed(complete.checkpoint.folder, "", job.now))
    assert job.core.machines.checkpoints.newest == complete.checkpoint
    assert [o.version for o in sent(effects, SaveOver)] == [2, 2]
    assert [c.save for c in sent(job.finish_step(4), Committed)] == [True, True]


def test_a_problem_keeps_the_old_checkpoint_and_warns() -> None:
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    job.finish_step(2)
    job.finish_step(3)
    effects = job.say("server-0", Saved(0, 1, 4, (), (), "disk full"))
    assert [o.version for o in sent(effects, SaveOver)] == [4, 4]
    assert "disk full" in job.core.machines.checkpoints.warning
    assert "i0000-v0000000002 is kept" in job.core.machines.checkpoints.warning
    assert job.core.machines.checkpoints.newest == complete.checkpoint
    assert job.core.settled
    assert len(sent(job.say("server-1", Saved(0, 1, 4, (), ())), SaveOver, "server-1")) == 1


def test_old_checkpoints_go_when_a_newer_one_is_complete() -> None:
    job = trained(0, checkpoint_steps=1, keep_checkpoints=2)
    dropped = []
    for step in range(4):
        job.finish_step(step)
        complete = save(job, step + 1)
        dropped.append(complete.drop)
        job.core.completed(complete.checkpoint.folder, "", job.now)
    assert dropped == [(), (), ("i0000-v0000000001",), ("i0000-v0000000002",)]
    assert [c.position.version for c in job.core.machines.checkpoints.complete] == [3, 4]


def test_the_last_version_goes_to_a_checkpoint_when_the_job_ends() -> None:
    job = trained(3, checkpoint_steps=100)
    effects = job.core.finish(job.now)
    assert [(c.commit.version, c.save) for c in sent(effects, Committed)] == [(3, True), (3, True)]
    assert not job.core.settled
    complete = save(job, 3)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    assert job.core.settled
    assert job.core.finish(job.now) == [], "there is one of it now"


# ---------------------------------------------------------------- the job goes back


def test_without_a_checkpoint_the_job_begins_again_and_so_do_its_workers() -> None:
    job = trained(2)
    for worker in job.workers:
        job.turn(worker)
    intro = Register(job.req(), "server", "server-1", 2, "here", "elsewhere")
    effects = job.say("server-1/2", intro)
    (fact,) = written(effects, IncarnationFact)
    assert fact.position is None
    assert {a.kind for a in sent(effects, Abort)} == {"rewound"}
    assert job.core.version == -1
    assert sent(worker_back(job, "worker-0", progress=0), Abort)[0].kind == "rewound"
    fresh = job.say("worker-0/2", Register(job.req(), "worker", "worker-0", 2, "here", None, job.job))
    assert len(sent(fresh, Welcome)) == 1


def test_workers_beyond_the_rewound_phase_must_start_again() -> None:
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    for step in range(2, 20):
        job.finish_step(step)
    assert job.core.tables.phases.open is None
    assert len(sent(job.turn("worker-0"), PhaseOver)) == 1
    effects = job.say("server-1/2", Register(job.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert [e.kind for e in sent(effects, Abort, "worker-0")] == ["rewound"]
    assert sent(effects, Abort, "worker-1") == [], "it had not heard that the phase is over"
    assert job.core.tables.phases.open is not None


def test_a_phase_that_began_at_the_checkpoint_begins_there_again() -> None:
    job = CoordinatorKit(servers=2, rewinds=True, checkpoint_s=0.5).start(data_len=8).initialise()
    job.now = 5.0
    job.finish_step(0)
    complete = save(job, 1)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    job.now = 10.0
    effects = job.finish_step(1)
    assert [c.save for c in sent(effects, Committed)] == [True, True]
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    for worker in job.workers:
        assert len(sent(job.turn(worker), PhaseOver)) == 1
        spec = PhaseSpec(1, 12, 2, None, 1, True, False)
        assert len(sent(job.say(worker, BeginPhase(job.req(), spec)), PhaseBegun)) == 1
    job.servers = ["server-0", "server-1/2"]
    effects = job.say("server-1/2", Register(job.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert sent(effects, Abort) == []
    assert [p.spec.number for p in job.core.tables.phases.phases] == [0, 1]
    (grant,) = sent(job.turn("worker-0", phase=1), Grant)
    assert (grant.step, grant.incarnation) == (2, 1)
    job.restart([complete.checkpoint])
    assert [p.spec.number for p in job.core.tables.phases.phases] == [0, 1], "and that is durable"


def test_a_damaged_checkpoint_is_passed_over() -> None:
    job = trained(0, checkpoint_steps=1)
    for step in range(2):
        job.finish_step(step)
        complete = save(job, step + 1)
        job.core.completed(complete.checkpoint.folder, "", job.now)
    job.servers = ["server-0", "server-1/2"]
    job.say("server-1/2", Register(job.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert job.core.tables.incarnation.base is not None
    assert job.core.tables.incarnation.base.position.version == 2
    effects = job.say("server-0", NotLoaded(1, 2, "i0000-v0000000002", "a shard is damaged"))
    (fact,) = written(effects, IncarnationFact)
    assert (fact.number, fact.folder) == (2, "i0000-v0000000001")
    assert "damaged" in job.core.machines.checkpoints.warning
    assert job.core.version == 1
    assigns = sent(effects, Assign)
    assert [a.folder for a in assigns] == ["i0000-v0000000001"] * 2, "all servers are there: nobody need come first"
    assert sent(job.turn("worker-0"), Grant)[0].incarnation == 2


def test_an_answer_from_before_a_rewind_is_not_repeated_while_there_is_no_placement() -> None:
    job = trained(2, checkpoint_steps=1)
    job.core.completed(save(job, 1).checkpoint.folder, "", job.now)
    asked = Turn(job.req(), 0, 0)
    assert len(sent(job.say("worker-0", asked), Grant)) == 1
    job.say("engine", Exited(job.req(), "server-1", 1, -9))
    assert job.core.placement is None
    assert job.say("worker-0", asked) == [], "that lease is of another history"


def test_rewind_survives_the_coordinator() -> None:
    job, _ = rewound(3)
    checkpoints = job.core.machines.checkpoints.complete
    job.restart(checkpoints)
    core = job.core
    assert (core.incarnation, core.version, core.tables.incarnation.rewinds, core.tables.incarnation.recomputed) == (
        1,
        2,
        1,
        1,
    )
    assert core.placement is not None
    assert core.placement.epoch == 2
    effects = server_back(job, "server-0", incarnation=0, epoch=1, applied=3)
    (assign,) = sent(effects, Assign, "server-0")
    assert (assign.incarnation, assign.folder) == (1, "i0000-v0000000002")


def test_a_server_that_knows_more_than_the_log_is_not_believed() -> None:
    job = trained(2)
    job.restart()
    effects = server_back(job, "server-0", applied=9)
    assert len(written(effects, IncarnationFact)) == 1


def test_resume_begins_from_the_named_checkpoint() -> None:
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    job.finish_step(2)
    job.restart([complete.checkpoint], resume="i0000-v0000000002", servers=1)
    assert (job.core.version, job.core.incarnation, job.core.tables.incarnation.rewinds) == (2, 1, 0)
    effects = job.say("new", Register(job.req(), "server", "server-0", 9, "here", "at"))
    (assign,) = sent(effects, Assign)
    assert set(assign.placement.owners) == {"new"}, "with another number of servers"
    assert len(written(effects, PlacementFact)) == 1


def test_without_rewinds_a_lost_server_ends_the_job() -> None:
    job = CoordinatorKit(servers=2).start(data_len=80).initialise()
    job.say("server-1/2", Register(job.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert job.core.failure is not None
    assert "no other copy" in job.core.failure.reason


# ---------------------------------------------------------------- late and slow workers


def test_late_mismatch_refuses_the_newcomer_only() -> None:
    job = trained(1)
    other = msgspec.structs.replace(job.job, seed=99)
    effects = job.say("late", Register(job.req(), "worker", "worker-j1", 5, "here", None, other))
    assert sent(effects, Abort, "late")[0].kind == "script"
    assert job.core.failure is None


def test_a_turn_in_a_phase_that_is_no_more_sends_the_worker_back() -> None:
    job = trained(1)
    effects = job.say("worker-0", Turn(job.req(), 5, 0))
    assert sent(effects, Abort, "worker-0")[0].kind == "rewound"


def test_a_server_freezes_the_version_that_its_commit_says_and_tells_until_it_is_heard() -> None:
    kit = ServerKit(segment(slots=1, end_step=10, data_len=20))
    kit.push(0, 0, 5)
    row = Commit(0, 1, 0, (fence(5),), HYPER, 1.0, False, 0, 0)
    kit.tell(Committed(1, kit.core.assignment.epoch, row, save=True))
    assert kit.store.saved == [1]
    assert kit.core.saving.version == 1
    chains = dict(kit.core.own.chains)
    kit.push(1, 0, 6, base=1)
    kit.commit(2, 1, 6)
    assert kit.core.own.chains != chains, "training goes on"
    (saved,) = sent(kit.core.saved(1, (), ""), Saved)
    assert dict(saved.chains) == chains, "the chains are those of the frozen version"
    assert sent(kit.core.tick(9.0), Saved) == [saved]
    kit.tell(SaveOver(1, 0, 1))
    assert kit.core.saving.version is None
    assert sent(kit.core.tick(99.0), Saved) == []
    assert kit.core.saved(1, (), "") == [], "given up: nobody is told"


def test_interchangeable_attempts_that_servers_used_otherwise_are_in_the_log() -> None:
    job = trained(0)
    first, second = job.lease("worker-0"), job.lease("worker-1")
    job.seal("worker-0", first)
    job.seal("worker-1", second)
    assert job.core.placement is not None
    job.ready("server-0", 0, first.fence, second.fence)
    other = fence(77)
    (commit,) = written(job.ready("server-1", 0, first.fence, other), Commit)
    blocks = tuple(b for b, owner in enumerate(job.core.placement.owners) if owner == "server-1")
    assert commit.fences == (first.fence, second.fence)
    assert commit.variants == ((blocks, (first.fence, other)),)


def test_a_manifest_that_could_not_be_written_is_no_checkpoint() -> None:
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    effects = job.core.completed(complete.checkpoint.folder, "disk full", job.now)
    assert job.core.machines.checkpoints.newest is None
    assert "there is no older one" in job.core.machines.checkpoints.warning
    assert [o.version for o in sent(effects, SaveOver)] == [2, 2]


def test_a_coordinator_that_dies_between_a_rewind_and_the_placement_validates_where_it_goes_on() -> None:

    job = validating(servers=2, rewinds=True, checkpoint_steps=1)
    job.finish_step(0)
    complete = save(job, 1)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    job.wrote(job.core.lost("server-1", "gone", job.now))
    assert job.core.machines.rewind.is_rewinding
    job.restart([complete.checkpoint])
    assert job.core.machines.rewind.is_rewinding
    assert [r.version for r in job.core.tables.rounds.running.values()] == [1]


def test_versions_that_a_server_kept_before_a_rewind_are_not_validated_after_it() -> None:
    """It was cut off: it has not heard that the job went back when another coordinator asks it what it has."""
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


def test_the_initial_weights_are_the_last_version_of_a_loop_without_data_after_a_restart_too() -> None:
    job = CoordinatorKit(servers=2).start(data_len=0).initialise()
    job.begin("worker-0", number=1)
    job.finish_step(0, phase=1)
    assert job.core.version == 1
    job.restart()
    for server in job.servers:
        server_back(job, server, kept=(0,))
    for worker in job.workers:
        worker_back(job, worker)
    assert [over.version for over in job.over(job.turn("worker-1"))] == [0]
