"""Membership: how a role registers, shows that it lives, learns the placement, and leaves."""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.work import HeldLease
from paceline.types import ModelSpec, NodeId, Placement


class JobArgs(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of `join`, after the command line and the environment have overridden them.

    `mode` is a mode, or a schedule of modes. With `slots_auto`, the job chooses its slots by the speeds of its workers.
    """

    seed: int
    mode: str
    slots: int | None
    threads: int
    slots_auto: bool = False


class Register(Message, frozen=True):
    """The first message of a role to every coordinator: its identity, and the state that it still has.

    The process is start number `start` of `name`, counted from 1 by the launcher; `name` and `start` are its identity.
    A worker sends `job`, `leases`, how many validators it has `declared`, and its `progress` through the script: twice
    the number of its phase, plus one once the worker has left that phase; -1 before the first phase. A server sends the
    `address` at which it listens, and the incarnation, epoch, last applied version and kept versions of its blocks.
    `host` is the name of the host on which the process runs. `fingerprint` says what it computes with: processes with
    equal ones compute equal bits.
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
    fingerprint: str = ""


class Welcome(Message, frozen=True):
    """Reply to `Register`: the arguments of the job (those of its first worker), and the times of the heartbeat.

    A role reports a peer that has not answered for `reach_s`.
    """

    req: int
    generation: int
    incarnation: int
    job: JobArgs | None
    heartbeat_s: float
    reach_s: float


class Prepare(Message, frozen=True):
    """Sends a worker's model. The coordinator answers once every server has registered and every block has a server."""

    req: int
    spec: ModelSpec


class Prepared(Message, frozen=True):
    """The placement of the blocks: the reply to `Prepare` and `PlacementRequest`, and sent after every change.

    `firsts` has the last version that was committed before each of the last epochs: (epoch, version).
    """

    req: int
    generation: int
    incarnation: int
    placement: Placement
    firsts: tuple[tuple[int, int], ...] = ()


class PlacementRequest(Message, frozen=True):
    """A worker asks for a placement newer than `epoch`, because a server has refused that epoch."""

    req: int
    epoch: int


class Beat(Message, frozen=True):
    """The heartbeat. `node` is the node id of the role: the heartbeat has a session of its own.

    A server adds the last version that it has applied, the revision of its plan, and the versions that it keeps.
    """

    node: NodeId
    incarnation: int = 0
    epoch: int = 0
    applied: int = -2
    revision: int = 0
    kept: tuple[int, ...] = ()


class BeatAck(Message, frozen=True):
    """The answer to `Beat`.

    `state` is the job's (waiting, running, finished, failed); `known` is False once the sender was evicted.
    """

    generation: int
    state: str
    known: bool


class Bye(Message, frozen=True):
    """Reports that the script of this worker has ended without an error."""

    req: int


class Failed(Message, frozen=True):
    """Reports that this role has failed, which fails the job. `trace` is the traceback if the user's script raised."""

    req: int
    kind: str
    trace: str


class Abort(Message, frozen=True):
    """Tells a peer that the job has ended for it: `kind` is script, lost, stopped or rewound.

    With rewound, the script of this worker is in a later loop than the job, so the script must start again.
    """

    generation: int
    kind: str
    reason: str
    trace: str = ""
