"""A coordinator that is restarted or rewound, and the members that register with it again."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.kit.core import HYPER, Desk

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


def busy(desk: Desk, worker: str, seconds: float) -> None:
    desk.core.tables.speeds.note(worker, seconds, desk.now)
    desk.core.tables.speeds.refresh()


def validating(*, data_len: int = 80, **spec: Any) -> Desk:
    """A job that validates every version; the initial weights are there."""
    desk = Desk(**spec).start(begin=False)
    for worker in desk.workers:
        desk.say(worker, Declare(desk.req(), ValidatorSpec(0, "accuracy", 1, 8, 4)))
        desk.begin(worker, data_len=data_len)
    return desk.initialise()
