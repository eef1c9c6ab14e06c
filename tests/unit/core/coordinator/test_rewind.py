"""Rewinds: which checkpoint a job goes back to, and what its members do then."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.restarted_job import rewound, save, server_back, trained, validating, worker_back

from paceline.core.effects import IncarnationFact, PlacementFact
from paceline.messages import (
    Abort,
    Assign,
    BeginPhase,
    Committed,
    Exited,
    Grant,
    NotLoaded,
    PhaseBegun,
    PhaseOver,
    Register,
    Turn,
    Welcome,
)
from paceline.types import PhaseSpec


def test_without_a_checkpoint_a_rewind_restarts_the_job_and_its_workers() -> None:
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
    assert sent(effects, Abort, "worker-1") == [], "worker-1 was not told that the phase is over, so it continues"
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
    assert [p.spec.number for p in job.core.tables.phases.phases] == [0, 1], "the phases survive a restart"


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
    assert [a.folder for a in assigns] == ["i0000-v0000000001"] * 2, (
        "all servers are registered, so each gets its assignment at once"
    )
    assert sent(job.turn("worker-0"), Grant)[0].incarnation == 2


def test_a_repeated_turn_gets_no_answer_from_before_a_rewind() -> None:
    job = trained(2, checkpoint_steps=1)
    job.core.completed(save(job, 1).checkpoint.folder, "", job.now)
    asked = Turn(job.req(), 0, 0)
    assert len(sent(job.say("worker-0", asked), Grant)) == 1
    job.say("engine", Exited(job.req(), "server-1", 1, -9))
    assert job.core.placement is None
    assert job.say("worker-0", asked) == [], "the lease belongs to the incarnation before"


def test_a_rewind_survives_a_restart_of_the_coordinator() -> None:
    job, _ = rewound(3)
    checkpoints = job.core.machines.checkpoints.kept.complete
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


def test_resume_begins_from_the_named_checkpoint() -> None:
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    job.finish_step(2)
    job.restart([complete.checkpoint], resume="i0000-v0000000002", servers=1)
    assert (job.core.version, job.core.incarnation, job.core.tables.incarnation.rewinds) == (2, 1, 0)
    effects = job.say("new", Register(job.req(), "server", "server-0", 9, "here", "at"))
    (assign,) = sent(effects, Assign)
    assert set(assign.placement.owners) == {"new"}, "the number of servers may differ from that of the earlier run"
    assert len(written(effects, PlacementFact)) == 1


def test_without_rewinds_a_lost_server_ends_the_job() -> None:
    job = CoordinatorKit(servers=2).start(data_len=80).initialise()
    job.say("server-1/2", Register(job.req(), "server", "server-1", 2, "here", "elsewhere"))
    assert job.core.failure is not None
    assert "no other copy" in job.core.failure.reason


def test_a_turn_in_a_phase_that_was_rewound_restarts_the_worker() -> None:
    job = trained(1)
    effects = job.say("worker-0", Turn(job.req(), 5, 0))
    assert sent(effects, Abort, "worker-0")[0].kind == "rewound"


def test_a_coordinator_restarted_between_a_rewind_and_its_placement_validates_the_restored_version() -> None:

    job = validating(servers=2, rewinds=True, checkpoint_steps=1)
    job.finish_step(0)
    complete = save(job, 1)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    job.wrote(job.core.lost("server-1", "gone", job.now))
    assert job.core.machines.rewind.is_rewinding
    job.restart([complete.checkpoint])
    assert job.core.machines.rewind.is_rewinding
    assert [r.version for r in job.core.tables.rounds.running.values()] == [1]
