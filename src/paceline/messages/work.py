"""Messages between workers and the coordinator: phases, leases, sealed slots, validation, and claims."""

from __future__ import annotations

import msgspec

from paceline.config.policies import PolicySpec
from paceline.messages.base import Message
from paceline.types import BadRecord, DataFingerprint, DialChange, Fence, Hyper, Measured, PhaseSpec, Segment, Sums


class ValidatorSpec(msgspec.Struct, frozen=True, array_like=True):
    """A validation that runs every `every` versions (0: only when a script calls `evaluate`).

    `series` is the number of the first validation with the same function and data; -1 in a log of Paceline 0.1.
    """

    number: int
    name: str
    every: int
    data_len: int
    batch_size: int
    series: int = -1


class Declare(Message, frozen=True):
    """Declares a validator of this worker; all workers must declare the same ones in the same order."""

    req: int
    validator: ValidatorSpec


class DeclarePolicy(Message, frozen=True):
    """Asks for a policy, the call number `number` of its kind in the script; all workers must make the same calls."""

    req: int
    number: int
    policy: PolicySpec


class CompareData(Message, frozen=True):
    """Asks whether this worker has the same data as the others; `use` says for which call of the script."""

    req: int
    use: str
    fingerprint: DataFingerprint


class LeaveOut(Message, frozen=True):
    """A worker asks to leave bad records out of phase `phase`. The job fails if it has more than `limit` of them."""

    req: int
    phase: int
    records: tuple[BadRecord, ...]
    limit: int


class BeginPhase(Message, frozen=True):
    """Reports that a worker enters a `batches` loop, with the loop's number and arguments."""

    req: int
    phase: PhaseSpec


class PhaseBegun(Message, frozen=True):
    """Reply to `BeginPhase`: the phase's segment, None if the job has ended and has no such phase."""

    req: int
    generation: int
    segment: Segment | None


NOT_FINITE = "not finite"
"""The topic of warnings about numbers that are not finite. The coordinator adds step, slot and worker."""


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A worker's report about a slot that it has sealed. `warnings` are texts for the user, by topic.

    The slot took `seconds` to compute; before that the worker `waited` for its batch.
    """

    step: int
    slot: int
    fence: Fence
    weight: float
    hyper: Hyper
    logs: dict[str, float]
    seconds: float
    warnings: dict[str, str] = {}
    waited: float = 0.0


class Evaluated(msgspec.Struct, frozen=True, array_like=True):
    """A worker's result of one validation slot: the sums of each metric."""

    round: int
    slot: int
    fence: Fence
    sums: dict[str, Sums]


class HeldLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease that a worker still holds: not sealed yet, or sealed (with its report) and not known to be committed.

    `revision` is that of its segment.
    """

    step: int
    slot: int
    fence: Fence
    sealed: Sealed | None = None
    epoch: int = 0
    revision: int = 0


class Turn(Message, frozen=True):
    """Reports the last slot and asks for the next lease: one message a turn.

    `phase` is the phase of the worker's loop; `evaluation` is the number of the validator whose result it waits for
    instead, -1 for none. `abandoned` returns a lease without work. `declared` is how many validators this worker has
    declared: a new coordinator may know fewer. `held` are the leases that the worker has in hand: it asks for a lease
    of a later step, for its next turn.
    """

    req: int
    phase: int
    incarnation: int
    sealed: Sealed | None = None
    evaluated: Evaluated | None = None
    abandoned: Fence | None = None
    evaluation: int = -1
    declared: int = 0
    held: tuple[Fence, ...] = ()


class Grant(Message, frozen=True):
    """A lease of one slot of `step`, which has `slots` slots. `segment` is the step's, None for the initial weights.

    `metrics` are the results of validation that the script sees in this turn: in lock-step they depend on `step` alone.
    With `ask_next`, the worker asks for the lease of its next turn as soon as it computes this one.
    """

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
    metrics: dict[str, Measured] = {}  # noqa: RUF012 - msgspec copies it
    ask_next: bool = False

    @property
    def revision(self) -> int:
        """The revision of the segment by which the slot is leased."""
        return 0 if self.segment is None else self.segment.revision


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


class Revoke(Message, frozen=True):
    """Tells a worker that its lease is void, so that it stops the work on the slot."""

    generation: int
    fence: Fence


class GiveBack(Message, frozen=True):
    """Reports that a server refused a push of this attempt: it can never count, and its slot must be leased again."""

    req: int
    fence: Fence


class PhaseOver(Message, frozen=True):
    """Tells a worker to read `version` and leave its loop: the phase has no more slots, or the job has ended.

    `segment` is the last one of the phase, None if the job has no such phase.
    """

    req: int
    generation: int
    incarnation: int
    epoch: int
    phase: int
    version: int
    step: int
    finished: bool
    lead: bool
    metrics: dict[str, Measured]
    segment: Segment | None = None


class EvalOver(Message, frozen=True):
    """The result of an evaluation that a worker asked for. `shown` has it under the names that `job.metrics` has."""

    req: int
    generation: int
    validator: int
    version: int
    metrics: dict[str, float]
    shown: dict[str, Measured] = {}  # noqa: RUF012 - msgspec copies it


class Stop(Message, frozen=True):
    """End the job after step `step`. With `at_once`: before the first step that has a slot that nobody has sealed.

    Observers may send it, too. With `passed` the worker is behind the job: the stop has no effect.
    """

    req: int
    reason: str
    step: int
    at_once: bool = False
    passed: bool = False


class SetDials(Message, frozen=True):
    """Changes dials of the running job, from the first step on that it can. The answer is `DialsSet`, or `Refused`.

    Observers may send it, too: their `step` is -1. A worker in a turn of `step` gets, in lock-step, a first step that
    follows from `step`. With `passed` the worker is behind the job: the message has no effect.
    """

    req: int
    change: DialChange
    step: int = -1
    reason: str = ""
    passed: bool = False


class DialsSet(Message, frozen=True):
    """The reply to `SetDials`: what was changed, from `step` on. If `change` is empty, all dials had these values."""

    req: int
    step: int
    change: DialChange


class Claim(Message, frozen=True):
    """A worker asks to do `key` once for the whole job; the other workers wait until it is done.

    With `passed` the worker is behind the job, at the end of a loop that others have left: it never gets the task, and
    does not wait.
    """

    req: int
    key: str
    passed: bool = False


class SavedModel(msgspec.Struct, frozen=True, array_like=True):
    """A file that `job.save` wrote on `host`, and the SHA-256 of that file."""

    file: str
    digest: str
    host: str


class Claimed(Message, frozen=True):
    """The reply to `Claim`. With `mine` the worker does the work and sends `ClaimDone`; otherwise the work is done.

    `saved` is set if the work was done before the worker asked, and wrote a file: what the job saved there last.
    """

    req: int
    mine: bool
    saved: SavedModel | None = None


class ClaimDone(Message, frozen=True):
    """Reports that the work claimed as `key` is done; `saved` is the file that it wrote, if it wrote one."""

    req: int
    key: str
    saved: SavedModel | None = None


class Warn(Message, frozen=True):
    """A worker warns the user of something outside of its turns. The job shows the first warning of each `topic`."""

    req: int
    topic: str
    text: str
