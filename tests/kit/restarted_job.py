"""A coordinator that is restarted or rewound, and the members that register with it again."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.kit.core import HYPER, CoordinatorKit

from paceline.core.effects import Complete, Effect
from paceline.messages import (
    Declare,
    Grant,
    HeldLease,
    Register,
    Saved,
    Sealed,
    ValidatorSpec,
)
from paceline.types import SavedFile


def server_back(job: CoordinatorKit, server: str, **changes: object) -> list[Effect]:
    placement = job.core.placement
    epoch = placement.epoch if placement is not None else 0
    intro = Register(job.req(), "server", server, 1, "here", "there")
    state = {"incarnation": job.core.incarnation, "epoch": epoch, "applied": job.core.version}
    return job.say(server, msgspec.structs.replace(intro, **{**state, **changes}))


def worker_back(job: CoordinatorKit, worker: str, *leases: HeldLease, **changes: object) -> list[Effect]:
    intro = Register(job.req(), "worker", worker, 1, "here", None, job.job, leases=leases, progress=0)
    return job.say(worker, msgspec.structs.replace(intro, incarnation=job.core.incarnation, **changes))


def held(grant: Grant, *, sealed: bool = False) -> HeldLease:
    report = Sealed(grant.step, grant.slot, grant.fence, 1.0, HYPER, {}, 0.1) if sealed else None
    return HeldLease(grant.step, grant.slot, grant.fence, report)


def trained(steps: int = 2, **options: object) -> CoordinatorKit:
    """Return a lock-step job with two servers that has committed some steps."""
    job = CoordinatorKit(servers=2, rewinds=True, **options).start(data_len=80).initialise()  # type: ignore[arg-type]
    for step in range(steps):
        job.finish_step(step)
    assert job.core.version == steps
    return job


def save(job: CoordinatorKit, version: int) -> Complete:
    """Let both servers report their part of a checkpoint."""
    assert job.core.placement is not None
    effects: list[Effect] = []
    for server in job.servers:
        mine = [b for b, owner in enumerate(job.core.placement.owners) if owner == server]
        files = (SavedFile(f"{server}.safetensors", 1, "00", tuple(mine)),)
        chains = tuple((b, bytes([b])) for b in mine)
        effects += job.say(server, Saved(job.core.incarnation, job.core.placement.epoch, version, files, chains))
    (complete,) = [e for e in effects if isinstance(e, Complete)]
    return complete


def rewound(steps: int = 3) -> tuple[CoordinatorKit, list[Effect]]:
    """Return a rewound job: version 2 has a checkpoint, `steps` are committed, and server-1 dies and restarts."""
    job = trained(2, checkpoint_steps=2)
    complete = save(job, 2)
    job.core.completed(complete.checkpoint.folder, "", job.now)
    for step in range(2, steps):
        job.finish_step(step)
    job.servers = ["server-0", "server-1/2"]
    intro = Register(job.req(), "server", "server-1", 2, "here", "elsewhere")
    return job, job.say("server-1/2", intro)


def busy(job: CoordinatorKit, worker: str, seconds: float) -> None:
    job.core.tables.speeds.note(worker, seconds, job.now)
    job.core.tables.speeds.refresh()


def validating(*, data_len: int = 80, **spec: Any) -> CoordinatorKit:
    """Return a job that validates every version and has its initial weights."""
    job = CoordinatorKit(**spec).start(begin=False)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), ValidatorSpec(0, "accuracy", 1, 8, 4)))
        job.begin(worker, data_len=data_len)
    return job.initialise()
