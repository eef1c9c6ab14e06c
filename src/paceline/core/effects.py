"""What a core asks its shell to do, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from paceline.messages import Checkpoint, JobArgs, Message, Position, Sealed, ValidatorSpec
from paceline.types import Commit, ModelSpec, NodeId, PhaseSpec, Placement, SavedFile, Segment


@dataclass(frozen=True, slots=True)
class Send:
    """Send `message`, followed by its frames (opaque here), to `to`."""

    to: NodeId
    message: Message
    payload: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class LogRow:
    """The mean of what the slots of a step logged."""

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
    """Something about the job, other than a commit, that a later coordinator must know. Kept in the order written."""


class JobFact(Fact, frozen=True):
    """The dials that the first worker brought."""

    job: JobArgs


class ModelFact(Fact, frozen=True):
    """The model that is trained."""

    model: ModelSpec


class PlacementFact(Fact, frozen=True):
    """A placement epoch begins, or one goes on with more members.

    With `failover`, a server that was lost was the primary of some blocks, and others were promoted. What is `planned`
    makes or moves copies; otherwise some were lost.
    """

    placement: Placement
    why: str = ""
    failover: bool = False
    planned: bool = False


class PhaseFact(Fact, frozen=True):
    """A phase begins, with its first segment."""

    spec: PhaseSpec
    segment: Segment


class StopFact(Fact, frozen=True):
    """The job is to end before step `step`; `closing` is the segment that closes the open phase early, if it does."""

    reason: str
    closing: Segment | None
    step: int = 0


class ValidatorFact(Fact, frozen=True):
    """A validation was declared."""

    validator: ValidatorSpec


class ChoiceFact(Fact, frozen=True):
    """Of the attempts of a slot, this one counts: written before any server hears of it."""

    sealed: Sealed


class ClaimFact(Fact, frozen=True):
    """Something that one worker does for all is done."""

    key: str


class IncarnationFact(Fact, frozen=True):
    """An incarnation begins: from version `position.version` of incarnation `position.incarnation`, kept in `folder`.

    Without a position it begins from nothing.
    """

    number: int
    folder: str
    position: Position | None
    why: str


class ScaleFact(Fact, frozen=True):
    """How many workers and servers (0: as before) the job is to have from now on."""

    workers: int
    servers: int = 0


AnyFact = (
    JobFact
    | ModelFact
    | PlacementFact
    | PhaseFact
    | StopFact
    | ValidatorFact
    | ChoiceFact
    | ClaimFact
    | IncarnationFact
    | ScaleFact
)


@dataclass(frozen=True, slots=True)
class FactRow:
    """A fact, with the incarnation and the version at which it was written."""

    incarnation: int
    version: int
    fact: AnyFact


@dataclass(frozen=True, slots=True)
class Write:
    """Make `row` durable before anything that follows in the list."""

    row: Commit | LogRow | EvaluationRow | FactRow


@dataclass(frozen=True, slots=True)
class Complete:
    """Every server has written its part: sync the log, write the manifest and the marker, then say `completed`.

    `drop` are folders of older checkpoints that need not be kept once this one is complete.
    """

    checkpoint: Checkpoint
    model: ModelSpec
    files: tuple[SavedFile, ...]
    chains: tuple[str, ...]
    drop: tuple[str, ...]


Effect = Send | Write | Complete


@dataclass(frozen=True, slots=True)
class History:
    """What a coordinator that starts finds in the log.

    `facts` are all, in order. Of commits, those of the newest incarnation only: `watermark` and `above` are the steps
    they add to where it began, `tail` the newest of them, in order; sums and maxima are over all of them.
    `evaluations` are the newest incarnation's.
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
