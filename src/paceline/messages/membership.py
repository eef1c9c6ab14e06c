"""Who is there: how a role comes, is heard of, learns where the blocks are, and leaves."""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.work import HeldLease
from paceline.types import ModelSpec, NodeId, Placement


class JobArgs(msgspec.Struct, frozen=True, array_like=True):
    """What `join` was asked for, after the command line and the environment had their say."""

    seed: int
    mode: str
    slots: int | None
    threads: int


class Register(Message, frozen=True):
    """First message of a role, and again to every new coordinator: what it is and what it still has.

    The process is start number `start` of `name`, counted from 1 by the launcher; `name` and `start` are its identity.
    A worker brings `job`, `leases`, how many validations it has `declared`, and its `progress` through the script:
    twice the number of its phase, plus one once that phase is over for it, -1 before the first. A server brings the
    `address` at which it listens, and of its blocks the incarnation, the epoch, the version `applied` and the versions
    `kept`.
    """

    req: int
    role: str
    name: str
    start: int
    host: str
    address: str | None = None
    job: JobArgs | None = None
    incarnation: int = 0
    epoch: int = 0
    applied: int = -2
    kept: tuple[int, ...] = ()
    progress: int = -1
    declared: int = 0
    leases: tuple[HeldLease, ...] = ()


class Welcome(Message, frozen=True):
    """Reply to `Register`: the dials that this run uses (the first worker's, for the whole job).

    Whoever is not answered by a peer for `reach_s` says so.
    """

    req: int
    generation: int
    incarnation: int
    job: JobArgs | None
    heartbeat_s: float
    reach_s: float


class Prepare(Message, frozen=True):
    """A worker's model. Answered when every server is there and the blocks are placed."""

    req: int
    spec: ModelSpec


class Prepared(Message, frozen=True):
    """Where the blocks are."""

    req: int
    generation: int
    incarnation: int
    placement: Placement


class PlacementRequest(Message, frozen=True):
    """A worker was refused by a server because of the epoch, and asks again where the blocks are."""

    req: int
    epoch: int


class Beat(Message, frozen=True):
    """A sign of life. `node` is the role's main identity.

    A server adds the last version that it has applied, the revision of its plan, and the versions that it keeps.
    """

    node: NodeId
    incarnation: int = 0
    epoch: int = 0
    applied: int = -2
    revision: int = 0
    kept: tuple[int, ...] = ()


class BeatAck(Message, frozen=True):
    """The coordinator heard it.

    `state` is the job's (waiting, running, finished, failed); `known` is False once the sender was evicted.
    """

    generation: int
    state: str
    known: bool


class Bye(Message, frozen=True):
    """This worker's script has ended well."""

    req: int


class Failed(Message, frozen=True):
    """This role cannot go on; `trace` is the user's traceback where it was the script. The job fails."""

    req: int
    kind: str
    trace: str


class Abort(Message, frozen=True):
    """The job is over for this peer: `kind` is script, lost, stopped or rewound.

    Rewound: this worker's script is further than the job is now, so it must be started again.
    """

    generation: int
    kind: str
    reason: str
    trace: str = ""
