"""The events by which the machines of the coordinator tell each other what happened.

A machine returns events among its effects. The dispatcher gives each event to its subscribers (`routes.subscribers`) in
declared order, and puts what they return in the place of the event.
"""

from __future__ import annotations

import msgspec

from paceline.core.coordinator.tables.members import Member
from paceline.core.effects import AnyFact, Effect
from paceline.messages import Evaluated as EvaluatedReport
from paceline.messages import HeldLease, Position, Register, Sealed, Turn
from paceline.types import Commit, NodeId, Placement


class Event(msgspec.Struct, frozen=True, gc=False):
    """One machine tells the others that something has happened."""


# ---------------------------------------------------------------- the job and its members


class JobFailed(Event, frozen=True, gc=False):
    """The job fails for this `reason`."""

    kind: str
    reason: str
    trace: str = ""


class Admitted(Event, frozen=True, gc=False):
    """A process that registers agrees with the job and becomes a member."""

    node: NodeId
    message: Register


class ServerJoined(Event, frozen=True, gc=False):
    """A server has become a member; `message` says which version it has."""

    node: NodeId
    message: Register


class WorkerJoined(Event, frozen=True, gc=False):
    """A worker has become a member; `message` says which leases it holds. `again`: it sent this message before."""

    node: NodeId
    message: Register
    again: bool


class Evicted(Event, frozen=True, gc=False):
    """A machine treats these members as lost, for the reason `why`.

    Several members are all those of the host `host`, which is lost: one event, and one change of placement (rule 14).
    `left`: they leave as planned.
    """

    members: tuple[Member, ...]
    why: str
    host: str = ""
    left: bool = False


class MembersRemoved(Event, frozen=True, gc=False):
    """These are no members any more: they were lost or refused, or must start again. `host`: their host is lost.

    `left`: they leave as planned.
    """

    members: tuple[Member, ...]
    why: str
    host: str = ""
    left: bool = False


class WorkersGone(Event, frozen=True, gc=False):
    """Workers compute nothing any more: they were `lost`, with their whole `host` if it is named, or they left."""

    workers: tuple[NodeId, ...]
    lost: bool
    host: str = ""


class WorkerRewound(Event, frozen=True, gc=False):
    """The script of `worker` is further than the job: it must start again."""

    worker: NodeId


class ModelAgreed(Event, frozen=True, gc=False):
    """A worker has the same model as the job, and waits for the placement."""

    worker: NodeId
    req: int


class WarningFound(Event, frozen=True, gc=False):
    """The user is warned of `text`, unless there was a warning about `topic` before."""

    topic: str
    text: str


class SamplersWanted(Event, frozen=True, gc=False):
    """A user wants that many samplers; a negative number is no change."""

    number: int


class ServersWanted(Event, frozen=True, gc=False):
    """The number of servers that the job wants may have changed."""


# ---------------------------------------------------------------- slots and steps


class WorkFreed(Event, frozen=True, gc=False):
    """There may be work for the workers that wait."""


class LeaseHeld(Event, frozen=True, gc=False):
    """A worker reports a lease that an earlier coordinator granted. `again`: it reported its leases before."""

    worker: NodeId
    held: HeldLease
    again: bool


class SlotSealed(Event, frozen=True, gc=False):
    """The holder of a lease, `worker`, sealed its slot."""

    report: Sealed
    worker: NodeId


class SlotReported(Event, frozen=True, gc=False):
    """A server reports a sealed slot, with the sum that it is in; the word of its worker may come later or never."""

    report: Sealed


class SlotsSummed(Event, frozen=True, gc=False):
    """A server has summed the first `count` slots of a step."""

    server: NodeId
    step: int
    count: int


class SlotEvaluated(Event, frozen=True, gc=False):
    """A worker has computed the sums of one validation slot."""

    report: EvaluatedReport


class TurnReported(Event, frozen=True, gc=False):
    """The machines have taken the reports of a worker's turn: the turn can be answered."""

    worker: NodeId
    turn: Turn


class StepNews(Event, frozen=True, gc=False):
    """There are reports on a step that may be ready for its commit."""

    step: int


class StepCommitted(Event, frozen=True, gc=False):
    """A step is in the log. Its slots logged these `values`. `save`: its version goes to a checkpoint.

    `bad` are the slots in which numbers were not finite, if a policy of the job asks for them.
    """

    commit: Commit
    save: bool
    values: dict[str, float]
    bad: tuple[int, ...] = ()


class StepsDropped(Event, frozen=True, gc=False):
    """The steps from `end_step` on will not be computed, or not by the segments that they had."""

    end_step: int


class PhaseEnded(Event, frozen=True, gc=False):
    """All steps of a phase are committed; `version` is the last version of the phase."""

    number: int
    version: int


class AttendanceChanged(Event, frozen=True, gc=False):
    """A worker may have left the earliest phase that workers are in."""


class RoundEnded(Event, frozen=True, gc=False):
    """A round of validation has its result; `last_of_version` if no other round on the version is open."""

    validator: str
    version: int
    metrics: dict[str, float]
    last_of_version: bool
    number: int = -1


# ---------------------------------------------------------------- blocks, checkpoints, incarnations


class PlacementDecided(Event, frozen=True, gc=False):
    """A new placement epoch is durable: uncommitted work of the old epoch is void."""

    placement: Placement
    failover: bool
    whole_attempts: bool = False
    kind: str = ""


class BlocksPlaced(Event, frozen=True, gc=False):
    """The first placement of an incarnation is durable."""


class BlocksMayMove(Event, frozen=True, gc=False):
    """Blocks may have to move or to be copied: plan again after `after_s`."""

    after_s: float


class WorkersCutOff(Event, frozen=True, gc=False):
    """These workers cannot reach some primary, so they get no leases."""

    workers: frozenset[NodeId]


class CopiesDiffer(Event, frozen=True, gc=False):
    """Copies of these blocks on these servers are not equal to their primaries'."""

    found: dict[NodeId, frozenset[int]]


class BlocksLost(Event, frozen=True, gc=False):
    """The server `name` is lost, and some of its blocks have no other copy."""

    name: str
    why: str


class IncarnationBegan(Event, frozen=True, gc=False):
    """The job continues from `position` (None: from its beginning), to which every machine resets itself."""

    position: Position | None


class VersionsKept(Event, frozen=True, gc=False):
    """Every holder of blocks still has these versions."""

    versions: tuple[int, ...]


class AllHeard(Event, frozen=True, gc=False):
    """Every holder of blocks has registered with this coordinator; `applied` are their versions."""

    applied: dict[NodeId, int]


Output = Effect | AnyFact | Event
"""What a machine returns: effects, facts that the dispatcher makes durable, and events."""
