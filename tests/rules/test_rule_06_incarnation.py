"""Rule 6, incarnation: a rewind starts incarnation n from a version of n − 1, as a row of the log.

Messages carry the incarnation. A server enters an incarnation only by loading the named checkpoint.

Upheld by:
- `core.coordinator.rewind` and `core.coordinator.tables.incarnation`: the row of the log, and what it resets
- `core.server.assignment.Assignment.load`: a server loads the checkpoint, or reports that it cannot
- `core.server.pulls.Pulls.pull` and `core.server.attempts.Attempts.push`: other incarnations are refused
- `core.worker.model_state.ModelState.enter`: a worker reads everything again
"""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.core import (
    BLOCKS,
    HYPER,
    CoordinatorKit,
    ServerKit,
    fence,
    model,
    segment,
    sent,
    state_of,
    turn_of,
    written,
)
from tests.kit.placed_job import compute, epoch, kill, placed, ready, replicated_job, returns
from tests.kit.restarted_job import rewound, save
from tests.kit.worker_core import grant, worker_core

from paceline.core.effects import (
    Complete,
    IncarnationFact,
)
from paceline.core.worker.dispatch import WorkerCore
from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    Abort,
    Assign,
    Committed,
    Grant,
    HeldLease,
    JobArgs,
    NotLoaded,
    PlacementRequest,
    Prepared,
    Pull,
    PullReply,
    Ready,
    Refused,
    Register,
    Saved,
    Scale,
    Seal,
)
from paceline.types import Commit, Placement


def test_pulls_and_pushes_of_another_incarnation_are_refused() -> None:
    server = ServerKit()
    placement = Placement(2, ("server-0",) * len(BLOCKS), {"server-0": "here"})
    server.tell(Assign(1, 2, placement, model(), BLOCKS, False, folder="i0000-v0000000000", version=0))
    assert server.store.loaded == [("i0000-v0000000000", 0)]
    assert sent(server.say(Pull(50, 1, 2, 0)), Refused)[0].rule == "incarnation"
    assert sent(server.push(0, 0, 5, incarnation=1, epoch=2), Refused)[0].rule == "incarnation"
    assert sent(server.push(0, 0, 5, incarnation=3, epoch=2), Refused)[0].rule == "plan", (
        "the server has not entered it yet"
    )
    assert server.say(Pull(51, 3, 3, 0)) == [], "the pull of a reader in the newer incarnation is parked"
    row = Commit(1, 1, 0, (fence(5), fence(6)), HYPER, 1.0, False, 0, 0)
    server.tell(Committed(1, 1, row))
    assert server.core.versions.applied == 0


def test_a_worker_ignores_pull_replies_of_another_incarnation() -> None:
    core = worker_core()
    core.ask(0.0, 0)
    (pull,) = sent(core.handle("coordinator", grant(core), (), 0.0), Pull)
    assert core.handle("server-0", PullReply(pull.req, 1, 0, 0, ()), (), 0.0) == []
    assert state_of(core) == WorkerState.PULLING
    core.handle("server-0", PullReply(pull.req, 0, 0, 0, ()), (), 0.0)
    assert state_of(core) == WorkerState.COMPUTING


def test_the_coordinator_ignores_reports_of_another_incarnation() -> None:
    job = CoordinatorKit(slots=1).start().initialise()
    grant_ = job.lease("worker-0")
    job.seal("worker-0", grant_, incarnation=1)
    assert written(job.ready("server-0", 0, grant_.fence), Commit) == []
    assert written(job.say("server-0", Ready(1, 1, 0, (grant_.fence,), 0, 0, ())), Commit) == []


def test_a_failed_load_under_an_older_placement_does_not_rewind_again() -> None:
    job = replicated_job(servers=1, replicas=0, checkpoint_steps=1)
    ready(job, 0, compute(job, 0))
    chains = tuple((b, b"") for b in range(len(placed(job).owners)))
    (complete,) = job.say("server-0", Saved(0, epoch(job), 1, (), chains))
    assert isinstance(complete, Complete)
    job.wrote(job.core.completed(complete.checkpoint.folder, "", job.now))
    kill(job, "server-0")
    node = returns(job, "server-0")
    assert (job.core.incarnation, job.core.version) == (1, 1)
    assert job.say(node, NotLoaded(1, epoch(job) - 1, complete.checkpoint.folder, "damaged")) == []
    assert len(written(job.say(node, NotLoaded(1, epoch(job), complete.checkpoint.folder, "damaged")), IncarnationFact))


def test_a_lost_server_starts_a_new_incarnation_from_the_last_checkpoint() -> None:
    job, effects = rewound(3)
    (fact,) = written(effects, IncarnationFact)
    assert fact.position is not None
    assert (fact.number, fact.folder, fact.position.version) == (1, "i0000-v0000000002", 2)
    assert (job.core.version, job.core.watermark.low, job.core.incarnation) == (2, 2, 1)
    assert (job.core.tables.incarnation.rewinds, job.core.tables.incarnation.recomputed) == (1, 1)
    assigns = sent(effects, Assign)
    assert [(a.incarnation, a.folder, a.version, a.watermark, a.placement.epoch) for a in assigns] == [
        (1, "i0000-v0000000002", 2, 2, 2)
    ] * 2
    kinds = [type(e).__name__ for e in effects]
    assert kinds.index("Write") < kinds.index("Send")
    assert sent(effects, Abort) == [], "a worker in the current phase continues"
    (grant,) = sent(job.turn("worker-0"), Grant)
    assert (grant.step, grant.incarnation, grant.epoch) == (2, 1, 2)


def test_reports_of_the_previous_incarnation_do_not_count() -> None:
    job, _ = rewound(3)
    assert written(job.say("server-0", Ready(0, 1, 2, (fence(1), fence(2)), 0, 0, ())), Commit) == []
    grant = job.lease("worker-0", incarnation=1)
    job.seal("worker-0", grant, incarnation=0)
    assert 2 not in job.core.tables.gate, "the seal belongs to another incarnation"


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_resumed_job_places_no_block_on_servers_of_the_earlier_run(servers: int) -> None:
    job = CoordinatorKit(servers=3, rewinds=True, replicas=1, checkpoint_steps=2).start(data_len=80).initialise()
    job.finish_step(0)
    job.finish_step(1)
    (saved,) = job.core.machines.checkpoints.kept.complete or [save(job, 2).checkpoint]
    job.restart([saved], resume=saved.folder, servers=servers, replicas=0)
    job.say("coordinator's engine", Scale(job.req(), 2, servers))
    for number in range(servers):
        assert job.core.placement is None, "a server is missing"
        job.say(f"new-{number}", Register(job.req(), "server", f"server-{number}", 9, "here", "at"))
    assert job.core.placement is not None
    assert set(job.core.placement.addresses) == {f"new-{number}" for number in range(servers)}
    assert job.core.tables.members.draining == frozenset()
    assert (job.core.tables.incarnation.rewinds, job.core.tables.placed.failovers) == (0, 0)


def test_a_server_that_cannot_load_reports_it_and_serves_nothing() -> None:
    kit = ServerKit()
    kit.store.damaged = "i0000-v0000000007"
    placement = Placement(2, ("server-0",) * len(BLOCKS), {"server-0": "here"})
    assign = Assign(1, 1, placement, model(), BLOCKS, False, folder="i0000-v0000000007", version=7)
    (told,) = sent(kit.tell(assign), NotLoaded)
    assert (told.incarnation, told.epoch, told.folder) == (1, 2, "i0000-v0000000007")
    assert "damaged" in told.problem
    assert kit.say(Pull(9, 1, 2, 7)) == []
    assert sent(kit.core.tick(99.0), NotLoaded) == [told], "the report is repeated until an assignment arrives"
    older = msgspec.structs.replace(assign, incarnation=2, folder="i0000-v0000000003", version=3)
    kit.tell(older)
    assert (kit.core.assignment.incarnation, kit.core.versions.applied) == (2, 3)
    assert sent(kit.core.tick(999.0), NotLoaded) == []


def test_a_worker_that_enters_an_incarnation_pulls_every_block_again() -> None:
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "bsp", 1, 1)))
    owners = ("server-0", "server-1")
    core.place(Prepared(0, 1, 0, Placement(1, owners, dict.fromkeys(owners, "at"))))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20), True)
    pulls = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    for server, pull in zip(owners, pulls, strict=True):
        core.handle(server, PullReply(pull.req, 0, 4, 4, ()), (), 0.0)
    core.push(0.0, {s: ((), (), Seal(1.0, (), ())) for s in owners})
    core.sealed(0.0, core.turn.report(1.0, HYPER, {}, 0.1))
    assert len(core.transfers.unacked) == 2
    again = Grant(turn_of(core).req, 1, 1, 2, 4, 0, 1, fence(2), segment(slots=1, end_step=20), True)
    (asked,) = sent(core.handle("coordinator", again, (), 0.0), PlacementRequest)
    assert len(core.transfers.unacked) == 0, "pushes of the other incarnation are dropped"
    new = Placement(2, owners, dict.fromkeys(owners, "at"))
    effects = core.handle("coordinator", Prepared(asked.req, 1, 1, new), (), 0.0)
    assert [(p.exact, p.have, p.incarnation) for p in sent(effects, Pull)] == [(4, -1, 1)] * 2
    assert core.reconnected(0.0)[0].message.leases == (HeldLease(4, 0, fence(2), None, 2),)  # type: ignore[attr-defined]
