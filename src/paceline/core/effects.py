"""Effects: what a core tells its shell to do, in order. Facts: the durable rows of the log besides commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from paceline.messages import (
    Checkpoint,
    DeclarePolicy,
    JobArgs,
    Message,
    Position,
    SavedModel,
    Sealed,
    ValidatorSpec,
)
from paceline.types import (
    BadRecord,
    Commit,
    DataFingerprint,
    DialChange,
    ModelSpec,
    NodeId,
    PhaseSpec,
    Placement,
    SavedFile,
    Segment,
)


class Send(msgspec.Struct, frozen=True):
    """Send `message` to `to`, followed by its frames (`payload`, which the core never reads).

    A message that is `later` may wait some milliseconds for another message to the same peer.
    """

    to: NodeId
    message: Message
    payload: Sequence[object] = ()
    later: bool = False


@dataclass(frozen=True, slots=True)
class LogRow:
    """The values that the slots of a step logged, each averaged over the slots."""

    incarnation: int
    version: int
    step: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """The result of one validation of one version."""

    incarnation: int
    version: int
    step: int
    name: str
    values: dict[str, float]
    validator: int = -1


class Fact(msgspec.Struct, frozen=True, tag=True):
    """A durable row of the log that is not a commit, for a later coordinator. The log keeps the order of writing."""


class JobFact(Fact, frozen=True):
    """The arguments of the job, from its first worker."""

    job: JobArgs


class ModelFact(Fact, frozen=True):
    """The model that the job trains."""

    model: ModelSpec


class PlacementFact(Fact, frozen=True):
    """A placement epoch begins, or more servers join the current one.

    With `failover`, backups became primaries because the primary of some blocks was lost. A `planned` change makes or
    moves copies; any other change follows the loss of copies. With `whole_attempts`, each slot counts as one attempt
    because workers are not equal machines; otherwise `kind` is the machine of all workers whose attempts may count in
    this epoch, also of those that are gone ("" if there was none yet).
    """

    placement: Placement
    why: str = ""
    failover: bool = False
    planned: bool = False
    whole_attempts: bool = False
    kind: str = ""


class PhaseFact(Fact, frozen=True):
    """A phase begins, with its first segment. `more` are the segments of the phase that are scheduled after it."""

    spec: PhaseSpec
    segment: Segment
    more: tuple[Segment, ...] = ()


class SegmentFact(Fact, frozen=True):
    """From `step` on other dials hold, for `reason`. The `change` is empty where a rewind begins with a later plan.

    `segments` replace the plan of the open phase from the first of them on. Without any, the change is for the next
    phase. The `revision` is that of the change.
    """

    step: int
    revision: int
    change: DialChange
    reason: str
    segments: tuple[Segment, ...] = ()


class StopFact(Fact, frozen=True):
    """The job ends before step `step`; `closing` is the segment that ends the open phase early, if one does."""

    reason: str
    closing: Segment | None
    step: int = 0


class ValidatorFact(Fact, frozen=True):
    """A validation was declared."""

    validator: ValidatorSpec


class ChoiceFact(Fact, frozen=True):
    """The coordinator has chosen the attempt that counts for its slot. Written before any server gets the choice."""

    sealed: Sealed


class PolicyFact(Fact, frozen=True):
    """The script asks for policies: the job stops or changes by its results."""

    policy: DeclarePolicy


class ClaimFact(Fact, frozen=True):
    """A task that only one worker does for the whole job, named `key`, is done. `saved` is the file that it wrote."""

    key: str
    saved: SavedModel | None = None


class IncarnationFact(Fact, frozen=True):
    """An incarnation begins from version `position.version` of incarnation `position.incarnation`, saved in `folder`.

    Without a position, the incarnation begins without any weights.
    """

    number: int
    folder: str
    position: Position | None
    why: str


class ScaleFact(Fact, frozen=True):
    """How many workers and servers the job shall have from now on; 0 leaves the number unchanged."""

    workers: int
    servers: int = 0


class DrainFact(Fact, frozen=True):
    """The host `host` shall hold no blocks and get no leases from now on; with `undo` it may again."""

    host: str
    undo: bool = False


class DataFact(Fact, frozen=True):
    """The data that `worker` was the first to use for the call `use` of the script."""

    use: str
    worker: str
    fingerprint: DataFingerprint


class DataChangeFact(Fact, frozen=True):
    """The job was resumed with changes: from here on its data may be others."""


class BadRecordFact(Fact, frozen=True):
    """Samples of the data of phase `phase` are left out of it: `worker` found that their content is damaged."""

    phase: int
    record: BadRecord
    worker: str


class MemberFact(Fact, frozen=True):
    """A process became a member of the job, or is none any more, for the reason `why`. Only records read it."""

    node: NodeId
    name: str
    role: str
    host: str
    change: str
    why: str = ""


class CheckpointFact(Fact, frozen=True):
    """A checkpoint is complete. Only records read it: what is there is what counts."""

    folder: str


class MarkFact(Fact, frozen=True):
    """All rows before this one were written until `at`, a time of day. Only records read it.

    `logs` and `evaluations` are the last rows of those tables. `samples` are those that the job has applied; `speeds`
    are the seconds for a slot of each worker lately, and its part of the slots.
    """

    at: float
    logs: int = 0
    evaluations: int = 0
    samples: float = 0.0
    speeds: dict[str, tuple[float, float]] = {}


class WarningFact(Fact, frozen=True):
    """The user was warned; `text` is the first warning about `topic`."""

    topic: str
    text: str


AnyFact = (
    JobFact
    | ModelFact
    | PlacementFact
    | PhaseFact
    | SegmentFact
    | StopFact
    | ValidatorFact
    | ChoiceFact
    | PolicyFact
    | ClaimFact
    | IncarnationFact
    | ScaleFact
    | DrainFact
    | DataFact
    | DataChangeFact
    | BadRecordFact
    | WarningFact
    | MemberFact
    | CheckpointFact
    | MarkFact
)


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact, with the newest incarnation and version when it was written."""

    incarnation: int
    version: int
    fact: AnyFact


class Write(msgspec.Struct, frozen=True):
    """Make `row` durable before you carry out the effects that follow in the list."""

    row: Commit | LogRow | EvaluationRow | FactRow


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete a checkpoint for which every server has written its files.

    Sync the log, write the manifest and the marker file, then call `completed`.

    `drop` lists the folders of older checkpoints to remove once this one is complete.
    """

    checkpoint: Checkpoint
    model: ModelSpec
    files: tuple[SavedFile, ...]
    chains: tuple[str, ...]
    drop: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove complete checkpoints that need not be kept any more."""

    folders: tuple[str, ...]


Effect = Send | Write | Complete | Drop
"""The effects of the coordinator. A server only sends, and a worker has its own `WorkerEffect`."""


@dataclass(frozen=True, slots=True)
class History:
    """What a starting coordinator finds in the log.

    `facts` are all facts, in order. All other fields are about the newest incarnation: `watermark` and `above` tell
    which steps its commits add to its start, `tail` has its newest commits in order, sums and maxima are over all its
    commits.
    """

    facts: tuple[FactRow, ...] = ()
    incarnation: int = 0
    version: int = -1
    watermark: int = 0
    above: tuple[int, ...] = ()
    tail: tuple[Commit, ...] = ()
    samples: float = 0.0
    empty: int = 0
    max_staleness: int = 0
    max_lag: int = 0
    logs: dict[str, float] = field(default_factory=dict)
    evaluations: tuple[EvaluationRow, ...] = ()
