"""Every message one role sends to another: plain values, no behaviour.

A request carries `req`, and ends in a reply that carries the same number, in `Refused`, or in a named error on the
asking side. Messages from the coordinator carry its `generation`; messages about state carry the `incarnation`, and
those about blocks the placement `epoch`. Tensors never stand in a message: they follow it as raw frames, one
`BlockFrame` in the message for each.
"""

from __future__ import annotations

import msgspec

from paceline.types import (
    BlockSpec,
    Commit,
    Fence,
    Hyper,
    ModelSpec,
    NodeId,
    PhaseEntry,
    PhaseSpec,
    Placement,
    SavedFile,
    Segment,
    Sums,
)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class BlockFrame(msgspec.Struct, frozen=True, array_like=True):
    """Declares one raw frame. `rev` counts the pushes of this block within one attempt."""

    block: int
    dtype: str
    numel: int
    rev: int = 0
    codec: str = "raw"


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Ends an attempt: what it weighs and which push of each block counts.

    `absent` lists the tensors for which the turn made no gradient (or whose buffer did not change); `revs` lists
    (block, rev) for the blocks of this server that carry something.
    """

    weight: float
    absent: tuple[int, ...]
    revs: tuple[tuple[int, int], ...]


# ---------------------------------------------------------------- anyone -> coordinator


class JobArgs(msgspec.Struct, frozen=True, array_like=True):
    """What `join` was asked for, after the command line and the environment had their say."""

    seed: int
    mode: str
    slots: int | None
    threads: int


class ValidatorSpec(msgspec.Struct, frozen=True, array_like=True):
    """A validation that the system runs every `every` versions (0: only when `evaluate` asks)."""

    number: int
    name: str
    every: int
    data_len: int
    batch_size: int


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """What a worker tells the coordinator of a slot it has sealed."""

    step: int
    slot: int
    fence: Fence
    weight: float
    hyper: Hyper
    logs: dict[str, float]
    seconds: float


class HeldLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease that a worker still holds: in hand, or sealed (then with its report) on a step it knows no commit of."""

    step: int
    slot: int
    fence: Fence
    sealed: Sealed | None = None


class Register(Message, frozen=True):
    """First message of a role, and again to every new coordinator: what it is and what it still has.

    A worker brings `job`, `leases`, how many validations it has `declared`, and its `progress` through the script:
    twice the number of its phase, plus one once that phase is over for it, -1 before the first. A server brings the
    `address` at which it listens, and of its blocks the incarnation, the epoch, the version `applied` and the versions
    `kept`.
    """

    req: int
    role: str
    name: str
    pid: int
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


class Position(msgspec.Struct, frozen=True):
    """Where a job is at a version: everything but tensors that it needs to go on from there."""

    incarnation: int
    version: int
    watermark: int
    above: tuple[int, ...]
    segments: tuple[Segment, ...]
    phases: tuple[PhaseEntry, ...]
    validators: tuple[ValidatorSpec, ...]
    job: JobArgs
    metrics: dict[str, float]
    results: tuple[tuple[int, int, dict[str, float]], ...] = ()
    logs: dict[str, float] = {}
    samples: float = 0.0
    empty: int = 0
    claims: tuple[str, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint: where it is, and where it goes on."""

    folder: str
    position: Position


class Welcome(Message, frozen=True):
    """Reply to `Register`: the dials that this run uses (the first worker's, for the whole job)."""

    req: int
    generation: int
    incarnation: int
    job: JobArgs | None
    heartbeat_s: float


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


class Declare(Message, frozen=True):
    """A worker's n-th validator; all workers must declare the same."""

    req: int
    validator: ValidatorSpec


class BeginPhase(Message, frozen=True):
    """A worker enters its n-th `batches`."""

    req: int
    phase: PhaseSpec


class PhaseBegun(Message, frozen=True):
    """Reply to `BeginPhase`: `segment` is None when the job is over."""

    req: int
    generation: int
    segment: Segment | None


class Evaluated(msgspec.Struct, frozen=True, array_like=True):
    """The sums of one validation slot."""

    round: int
    slot: int
    fence: Fence
    sums: dict[str, Sums]


class Turn(Message, frozen=True):
    """Report what was done and ask for the next lease: one message a turn.

    `phase` is the phase the worker is in; `evaluation` is the number of the validator whose result it waits for
    instead, -1 for none. `abandoned` hands a lease back without work.
    """

    req: int
    phase: int
    incarnation: int
    sealed: Sealed | None = None
    evaluated: Evaluated | None = None
    abandoned: Fence | None = None
    evaluation: int = -1


class GiveBack(Message, frozen=True):
    """A server refused a push of this attempt: it will never count, and its slot must be leased again."""

    req: int
    fence: Fence


class Stop(Message, frozen=True):
    """End the job: after step `step`, or at the last committed version when `at_once`. Observers may ask for it too."""

    req: int
    reason: str
    step: int
    at_once: bool = False


class Claim(Message, frozen=True):
    """Ask to be the one worker that does `key`; others wait until it is done."""

    req: int
    key: str


class Claimed(Message, frozen=True):
    """`mine`: do it and say `ClaimDone`. Otherwise somebody has done it."""

    req: int
    mine: bool


class ClaimDone(Message, frozen=True):
    """The claimed thing is done."""

    req: int
    key: str


class Failed(Message, frozen=True):
    """This role cannot go on; `trace` is the user's traceback where it was the script. The job fails."""

    req: int
    kind: str
    trace: str


class Bye(Message, frozen=True):
    """This worker's script has ended well."""

    req: int


class Ok(Message, frozen=True):
    """Done; nothing else to say."""

    req: int


class Beat(Message, frozen=True):
    """I am alive. `node` is the role's main identity; servers add what they have applied and what they keep."""

    node: NodeId
    incarnation: int = 0
    epoch: int = 0
    applied: int = -2
    segments: int = 0
    kept: tuple[int, ...] = ()


class BeatAck(Message, frozen=True):
    """The coordinator heard it.

    `state` is the job's (waiting, running, finished, failed); `known` is False once the sender was evicted.
    """

    generation: int
    state: str
    known: bool


class Exited(Message, frozen=True):
    """The engine saw a process end."""

    req: int
    name: str
    pid: int
    code: int


class StatusRequest(Message, frozen=True):
    """Anyone with the token may look."""

    req: int


class StatusReply(Message, frozen=True):
    """A JSON document."""

    req: int
    json: bytes


class Scale(Message, frozen=True):
    """Somebody wants the job to have that many workers; the engine sees it in the status and acts."""

    req: int
    workers: int


class Finish(Message, frozen=True):
    """Every worker has ended: close the books and say how it went."""

    req: int


class Summary(Message, frozen=True):
    """The run's summary, a JSON document."""

    req: int
    json: bytes


class Shutdown(Message, frozen=True):
    """The engine wants the role to end, saying why."""

    req: int
    reason: str


# ---------------------------------------------------------------- coordinator -> worker


class Grant(Message, frozen=True):
    """A lease of one training slot. `version` is what lock-step must read; with a window, anything new enough."""

    req: int
    generation: int
    incarnation: int
    epoch: int
    step: int
    slot: int
    slots: int
    fence: Fence
    segment: Segment | None
    lead: bool


class EvalGrant(Message, frozen=True):
    """A lease of one validation slot, pinned to `version`."""

    req: int
    generation: int
    incarnation: int
    epoch: int
    round: int
    validator: int
    slot: int
    fence: Fence
    version: int
    lead: bool


class PhaseOver(Message, frozen=True):
    """No more slots in this phase (or in the job). Read `version` and leave the loop."""

    req: int
    generation: int
    incarnation: int
    epoch: int
    phase: int
    version: int
    step: int
    finished: bool
    lead: bool
    metrics: dict[str, float]


class EvalOver(Message, frozen=True):
    """The result of an evaluation that a worker asked for."""

    req: int
    generation: int
    validator: int
    version: int
    metrics: dict[str, float]


class PlacementRequest(Message, frozen=True):
    """A worker was refused by a server because of the epoch, and asks again where the blocks are."""

    req: int
    epoch: int


class Revoke(Message, frozen=True):
    """A lease is void: its slot will not be computed after all."""

    generation: int
    fence: Fence


class Abort(Message, frozen=True):
    """The job is over for this peer: `kind` is script, lost, stopped or rewound.

    Rewound: this worker's script is further than the job is now, so it must be started again.
    """

    generation: int
    kind: str
    reason: str
    trace: str = ""


# ---------------------------------------------------------------- worker -> server


class Push(Message, frozen=True):
    """Gradients of one attempt; provisional until a push with `seal` arrives. Frames follow, one a `BlockFrame`.

    `weight` is what the seal will say, unless the slot turns out empty.
    """

    req: int
    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence
    base: int
    blocks: tuple[BlockFrame, ...]
    seal: Seal | None = None
    weight: float = 1.0


class PushAck(Message, frozen=True):
    """What became of a push: held, duplicate, or late (the step is committed already)."""

    req: int
    outcome: str


class Pull(Message, frozen=True):
    """Read blocks. `exact` names a version; -1 means the newest with watermark >= `watermark` that has `after`.

    Answered when it can be; `have` lets the server leave out blocks that have not changed since that version.
    """

    req: int
    incarnation: int
    epoch: int
    exact: int
    watermark: int = 0
    after: int = -2
    have: int = -1
    blocks: tuple[int, ...] | None = None


class PullReply(Message, frozen=True):
    """The blocks at `version`; frames follow. A large answer comes in `parts`, numbered from 0, in model order."""

    req: int
    incarnation: int
    version: int
    watermark: int
    blocks: tuple[BlockFrame, ...]
    part: int = 0
    parts: int = 1


class Refused(Message, frozen=True):
    """A request that breaks a rule, by the rule's name."""

    req: int
    rule: str
    detail: str


# ---------------------------------------------------------------- coordinator <-> server


class Assign(Message, frozen=True):
    """Which blocks exist and who holds them; a server that has none yet makes room.

    `hold` bounds the slots of a step that may wait for a lower one; 0 means that nothing does. A server enters an
    incarnation only by this message: it loads its blocks from the checkpoint `folder`, which is version `version`
    with the steps below `watermark` and those in `above`; without a folder it begins with nothing.
    """

    generation: int
    incarnation: int
    placement: Placement
    spec: ModelSpec
    blocks: tuple[BlockSpec, ...]
    whole: bool
    hold: int = 0
    folder: str = ""
    version: int = -1
    watermark: int = 0
    above: tuple[int, ...] = ()


class Plan(Message, frozen=True):
    """All segments so far: how many slots each step has, and its window.

    `final` is the last version of a job that was stopped, -1 while there may be more.
    """

    generation: int
    segments: tuple[Segment, ...]
    final: int = -1
    incarnation: int = 0


class Summed(Message, frozen=True):
    """This server has added the first `count` slots of a step: later ones may be leased."""

    incarnation: int
    epoch: int
    step: int
    count: int


class Receipt(Message, frozen=True):
    """This server holds one whole attempt of a slot (its blocks of it)."""

    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence


class Choose(Message, frozen=True):
    """Of the attempts of a slot, this one counts."""

    generation: int
    incarnation: int
    step: int
    slot: int
    fence: Fence


class Ready(Message, frozen=True):
    """Every block of this server has what it needs for the step.

    `fences` are the attempts it would use, `staleness` and `lag` how old the oldest state they were computed on was,
    `partials` the squared norm of the mean gradient of each of its blocks (only with clip_norm).
    """

    incarnation: int
    epoch: int
    step: int
    fences: tuple[Fence, ...]
    staleness: int
    lag: int
    partials: tuple[tuple[int, float], ...]


class Committed(Message, frozen=True):
    """A row of the commit log, to be applied in that order.

    With `keep`, the version before it stays readable; with `save`, the version that it makes goes to a checkpoint.
    """

    generation: int
    commit: Commit
    keep: bool = False
    save: bool = False


class Saved(Message, frozen=True):
    """This server's blocks of a version are in the checkpoint's folder, or `problem` says why not.

    `chains` has each block's hash chain at that version. Said again until `SaveOver`.
    """

    incarnation: int
    epoch: int
    version: int
    files: tuple[SavedFile, ...]
    chains: tuple[tuple[int, bytes], ...]
    problem: str = ""


class SaveOver(Message, frozen=True):
    """The checkpoint of that version is complete or given up: its memory is free, its report need not be repeated."""

    generation: int
    incarnation: int
    version: int


class NotLoaded(Message, frozen=True):
    """This server could not load its blocks from the checkpoint that its assignment named."""

    incarnation: int
    epoch: int
    folder: str
    problem: str


class Unpin(Message, frozen=True):
    """`version` need not be readable any longer."""

    generation: int
    incarnation: int
    version: int


AnyMessage = (
    Register
    | Welcome
    | Prepare
    | Prepared
    | Declare
    | BeginPhase
    | PhaseBegun
    | Turn
    | GiveBack
    | Stop
    | Claim
    | Claimed
    | ClaimDone
    | Failed
    | Bye
    | Ok
    | Beat
    | BeatAck
    | Exited
    | StatusRequest
    | StatusReply
    | Scale
    | Finish
    | Summary
    | Shutdown
    | Grant
    | EvalGrant
    | PhaseOver
    | EvalOver
    | PlacementRequest
    | Revoke
    | Abort
    | Push
    | PushAck
    | Pull
    | PullReply
    | Refused
    | Assign
    | Plan
    | Summed
    | Receipt
    | Choose
    | Ready
    | Committed
    | Saved
    | SaveOver
    | NotLoaded
    | Unpin
)
