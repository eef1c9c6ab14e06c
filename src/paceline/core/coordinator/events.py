"""What the machines of the coordinator tell each other.

A machine returns events among its effects. The dispatcher gives each event to its subscribers (`routes.subscribers`),
in declared order, at the place in the list where the event stands.
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
    """The job cannot go on."""

    kind: str
    reason: str
    trace: str = ""


class Admitted(Event, frozen=True, gc=False):
    """A process that registers agrees with the job and becomes a member."""

    node: NodeId
    message: Register


class ServerJoined(Event, frozen=True, gc=False):
    """A server is a member, and says which blocks and versions it has."""

    node: NodeId
    message: Register


class WorkerJoined(Event, frozen=True, gc=False):
    """A worker is a member, and says which leases it holds; `again` if it has said so before."""

    node: NodeId
    message: Register
    again: bool


class Evicted(Event, frozen=True, gc=False):
    """A machine has reason to treat `member` as lost."""

    member: Member
    why: str


class MemberRemoved(Event, frozen=True, gc=False):
    """`member` is no member any more: it is lost, refused or must start again."""

    member: Member
    why: str


class WorkerGone(Event, frozen=True, gc=False):
    """A worker computes nothing any more; it is `lost`, or left in good order."""

    worker: NodeId
    lost: bool


class WorkerRewound(Event, frozen=True, gc=False):
    """The script of `worker` is further than the job: it must start again."""

    worker: NodeId


class ModelAgreed(Event, frozen=True, gc=False):
    """A worker brought the job's model, and waits for the placement."""

    worker: NodeId
    req: int


class ServersWanted(Event, frozen=True, gc=False):
    """The number of servers that the job wants may have changed."""


# ---------------------------------------------------------------- slots and steps


class WorkFreed(Event, frozen=True, gc=False):
    """Something may have become available to the workers that wait."""


class LeaseHeld(Event, frozen=True, gc=False):
    """A worker holds a lease that an earlier coordinator granted."""

    worker: NodeId
    held: HeldLease
    again: bool


class SlotSealed(Event, frozen=True, gc=False):
    """The holder of a lease sealed its slot."""

    report: Sealed


class SlotsSummed(Event, frozen=True, gc=False):
    """A server has summed the first `count` slots of a step."""

    server: NodeId
    step: int
    count: int


class SlotEvaluated(Event, frozen=True, gc=False):
    """A worker has the sums of one validation slot."""

    report: EvaluatedReport


class TurnReported(Event, frozen=True, gc=False):
    """The reports of a worker's turn are taken: it can be answered."""

    worker: NodeId
    turn: Turn


class StepNews(Event, frozen=True, gc=False):
    """Something is known of a step that may be ready for its commit."""

    step: int


class StepCommitted(Event, frozen=True, gc=False):
    """A step is in the log. Its slots logged these `values`. `save`: its version goes to a checkpoint."""

    commit: Commit
    save: bool
    values: dict[str, float]


class StepsDropped(Event, frozen=True, gc=False):
    """Steps from `end_step` on will not be computed."""

    end_step: int


class PhaseEnded(Event, frozen=True, gc=False):
    """All steps of a phase are committed; `version` is its last."""

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


# ---------------------------------------------------------------- blocks, checkpoints, incarnations


class PlacementDecided(Event, frozen=True, gc=False):
    """A new placement epoch is durable: what is not committed under the old one is void."""

    placement: Placement
    failover: bool


class BlocksPlaced(Event, frozen=True, gc=False):
    """The first placement of an incarnation is durable."""


class BlocksMayMove(Event, frozen=True, gc=False):
    """Something has changed: see after `after_s` whether blocks should be elsewhere."""

    after_s: float


class WorkersCutOff(Event, frozen=True, gc=False):
    """These workers cannot reach some primary."""

    workers: frozenset[NodeId]


class CopiesDiffer(Event, frozen=True, gc=False):
    """Copies of these blocks on these servers are not equal to their primaries'."""

    found: dict[NodeId, frozenset[int]]


class BlocksLost(Event, frozen=True, gc=False):
    """A server is lost, and some of its blocks have no other copy."""

    name: str
    why: str


class IncarnationBegan(Event, frozen=True, gc=False):
    """The job goes on from `position`, or from nothing. Every machine resets itself to it."""

    position: Position | None


class VersionsKept(Event, frozen=True, gc=False):
    """Every server that holds blocks still has these versions."""

    versions: tuple[int, ...]


class AllHeard(Event, frozen=True, gc=False):
    """Every holder of blocks has registered with this coordinator, with the version it has applied."""

    applied: dict[NodeId, int]


Output = Effect | AnyFact | Event
"""What a machine returns: effects, facts that the dispatcher makes durable, and events."""
