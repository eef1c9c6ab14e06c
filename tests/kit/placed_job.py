"""A coordinator whose blocks have backups, and what happens to such a job: losses, returns, copies."""

from __future__ import annotations

from typing import Any

from tests.kit.core import CoordinatorKit, fence, segment, sent, turn_of

from paceline.core.effects import Effect
from paceline.core.worker.dispatch import WorkerCore
from paceline.messages import (
    Copied,
    Exited,
    Grant,
    JobArgs,
    Prepared,
    Pull,
    PullReply,
    Ready,
    Register,
)
from paceline.types import UNLIMITED, Kind, NodeId, Placement, TensorSpec


def replaced(job: CoordinatorKit) -> list[Grant]:
    """Let a server be lost and return while both slots of step 0 are computed again."""
    kill(job, "server-0")
    grants = compute(job, 0)
    returns(job, "server-0")
    return grants


TENSORS = (
    TensorSpec("weight", (160_000,), "float32", Kind.PARAMETER, 0),
    TensorSpec("bias", (100,), "float32", Kind.PARAMETER, 0),
)


def replicated_job(*, servers: int = 3, replicas: int = 1, data_len: int = 12, **changes: Any) -> CoordinatorKit:
    spec = {"replicas": replicas, "rewinds": True, "heartbeat_timeout_s": 100.0, "reach_s": 100.0} | changes
    return CoordinatorKit(servers=servers, tensors=TENSORS, **spec).start(data_len=data_len).initialise()


def placed(job: CoordinatorKit) -> Placement:
    assert job.core.placement is not None
    return job.core.placement


def epoch(job: CoordinatorKit) -> int:
    return placed(job).epoch


def ready(job: CoordinatorKit, step: int, grants: list[Grant], *, at: int | None = None) -> list[Effect]:
    """Let every primary report ready, under placement `at`."""
    effects: list[Effect] = []
    for server in job.core.tables.placed.owners:
        fences = tuple(g.fence for g in grants)
        effects += job.say(server, Ready(0, epoch(job) if at is None else at, step, fences, 0, 0, ()))
    return effects


def kill(job: CoordinatorKit, server: NodeId) -> list[Effect]:
    return job.say("engine", Exited(job.req(), server, 1, -9))


def compute(job: CoordinatorKit, step: int) -> list[Grant]:
    """Lease and seal both slots of a step."""
    grants = [job.lease(worker) for worker in job.workers]
    for worker, grant in zip(job.workers, grants, strict=True):
        assert grant.step == step
        job.seal(worker, grant)
    return grants


def returns(job: CoordinatorKit, name: str) -> NodeId:
    """Register a restarted server under its old name."""
    node = f"{name}/new"
    job.say(node, Register(job.req(), "server", name, 2, "here", f"at {node}"))
    return node


def tick(job: CoordinatorKit, seconds: float = 1.0) -> list[Effect]:
    job.now += seconds
    return job.wrote(job.core.tick(job.now))


def settle(job: CoordinatorKit, rounds: int = 30) -> None:
    """Complete every copy that the placement asks for."""
    for _ in range(rounds):
        tick(job, 0.3)
        for server, blocks in placed(job).joining:
            for source in sorted({placed(job).owners[b] for b in blocks}):
                job.say(server, Copied(0, epoch(job), source))


SMALL = (TensorSpec("weight", (10,), "float32", Kind.PARAMETER, 0),)


def small(**changes: Any) -> CoordinatorKit:
    """Return a job of one block: server-0 is its primary, server-1 has a copy."""
    job = CoordinatorKit(
        servers=2, tensors=SMALL, replicas=1, rewinds=True, heartbeat_timeout_s=100.0, reach_s=100.0, **changes
    )
    return job.start().initialise_with("server-0")


def worker_at(versions: tuple[int, int]) -> WorkerCore:
    """Return a worker that holds block 0 of server-0 and block 1 of server-1 at these versions."""
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "asp", 1, 1)))
    core.place(Prepared(0, 1, 0, Placement(1, ("server-0", "server-1"), {"server-0": "", "server-1": ""})))
    core.ask(0.0, 0)
    asynchronous = segment(slots=1, end_step=20, window=UNLIMITED)
    grant = Grant(turn_of(core).req, 1, 0, 1, 3, 0, 1, fence(0), asynchronous, True)
    pulls = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    for server, pull, version in zip(("server-0", "server-1"), pulls, versions, strict=True):
        core.handle(server, PullReply(pull.req, 0, version, version, ()), (), 0.0)
    return core
