"""The coordinator's shared state, and the few questions that all its parts ask of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator.claims import ClaimBook
from paceline.core.coordinator.gate import Gate
from paceline.core.coordinator.leases import LeaseBook
from paceline.core.coordinator.membership import Membership
from paceline.core.coordinator.phases import Attendance, PhaseBook
from paceline.core.coordinator.pins import PinBook
from paceline.core.coordinator.validation import EvaluationBook
from paceline.core.coordinator.worker_speed import Pace
from paceline.core.effects import AnyFact, Effect, FactRow, Send, Write
from paceline.core.segments import Schedule
from paceline.core.window import Watermark
from paceline.messages import (
    Abort,
    Assign,
    Checkpoint,
    Committed,
    JobArgs,
    Plan,
    Unpin,
)
from paceline.types import (
    INIT_STEP,
    BlockSpec,
    Commit,
    ModelSpec,
    NodeId,
    Placement,
    Segment,
    SlotId,
)


@dataclass(slots=True)
class Totals:
    """What the summary counts."""

    samples: float = 0.0
    skipped_slots: int = 0
    wasted_slots: int = 0
    max_staleness: int = 0
    max_lag: int = 0
    lost_workers: int = 0


class Books:
    """What is known of a job. Its parts change it; nobody else does.

    `base` is the checkpoint from which this incarnation began, `checkpoints` those that are complete, `saving` the
    version that servers write to one. `owners` are the primaries, `holders` all servers that have some copy or are
    being sent one. `awaited` are those of them that a new coordinator has not heard yet, `progress` tells how far each
    worker's script is. `cut_off` are workers that cannot reach a primary.
    """

    def __init__(self, spec: ClusterSpec, generation: int) -> None:
        """An empty job. `serve` offers what became free to those who wait; the desk sets it."""
        self.serve: Callable[[], list[Effect]] = list
        self.spec = spec
        self.generation = generation
        self.incarnation = 0
        self.state = "waiting"
        self.failure: Abort | None = None
        self.stop_reason: str | None = None
        self.job: JobArgs | None = None
        self.model: ModelSpec | None = None
        self.blocks: tuple[BlockSpec, ...] = ()
        self.placement: Placement | None = None
        self.version = -1
        self.step = 0
        self.logs: dict[str, float] = {}
        self.totals = Totals()
        self.members = Membership(spec.heartbeat_timeout_s)
        self.watermark = Watermark()
        self.schedule = Schedule()
        self.phases = PhaseBook(self.schedule, spec.workers)
        self.leases = self.new_leases(0)
        self.gate = Gate()
        self.pace = Pace()
        self.evaluations = EvaluationBook(generation << 32)
        self.pins = PinBook()
        self.claims = ClaimBook()
        self.attendance = Attendance()
        self.declared: dict[NodeId, int] = {}
        self.owners: tuple[NodeId, ...] = ()
        self.holders: tuple[NodeId, ...] = ()
        self.cut_off: set[NodeId] = set()
        self.restored = False  # an earlier coordinator had begun this job
        self.failovers = 0
        self.log: deque[Commit] = deque()
        self.suspects: deque[tuple[float, SlotId]] = deque()
        self.pinned_phases: list[int] = []
        self.unpin_next: int | None = None
        self.closing: Segment | None = None
        self.final = -1
        self.limit: int | None = None
        self.last: Commit | None = None
        self.now = 0.0
        self.epoch = 0
        self.base: Checkpoint | None = None
        self.checkpoints: list[Checkpoint] = []
        self.saving: int | None = None
        self.awaited: set[NodeId] = set()
        self.quiet_until = 0.0
        self.term_until = 0.0
        self.progress: dict[NodeId, int] = {}
        self.rewinds = 0
        self.recomputed = 0
        self.wanted_workers = spec.workers
        self.wanted_servers = spec.servers
        self.warning = ""

    def new_leases(self, counter: int) -> LeaseBook:
        """No leases yet; fences go on after `counter`."""
        return LeaseBook(
            self.schedule,
            self.generation,
            hold=self.spec.held,
            max_losses=self.spec.max_losses,
            done=self.is_done,
            counter=counter,
        )

    def is_done(self, slot: SlotId) -> bool:
        """Whether a slot need not be computed any more."""
        if slot.step == INIT_STEP:
            return self.version >= 0
        return self.watermark.has(slot.step) or self.gate.chosen(slot.step, slot.slot) is not None

    def fact(self, fact: AnyFact) -> Write:
        """Make a fact durable."""
        return Write(FactRow(self.incarnation, self.version, fact))

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def rewinding(self) -> bool:
        """Whether blocks that have been lost are not placed again yet."""
        return self.model is not None and self.placement is None and self.incarnation > 0

    def fail(self, kind: str, reason: str, trace: str) -> list[Effect]:
        """The job cannot go on; everyone is told, once."""
        if self.failure is not None:
            return []
        self.state = "failed"
        self.failure = Abort(self.generation, kind, reason, trace)
        return [Send(node, self.failure) for node in self.members.members]

    @property
    def whole(self) -> bool:
        """Whether a slot counts only as one whole attempt even in lock-step."""
        return self.model is None or not self.model.deterministic

    def place(self, placement: Placement | None) -> None:
        """The blocks are there from now on; None while they are nowhere."""
        self.placement = placement
        self.owners = () if placement is None else tuple(sorted(set(placement.owners)))  # some servers have none
        self.holders = () if placement is None else placement.holders

    @property
    def draining(self) -> frozenset[NodeId]:
        """Servers that are to leave: the newest ones, by the number in their name, beyond those that are wanted."""
        servers = sorted(self.members.by_role("server"), key=lambda m: _number(m.name))
        return frozenset(m.node for m in servers[self.wanted_servers :])

    def assignment(self) -> Assign:
        """What a server must know of the blocks."""
        assert self.placement is not None
        assert self.model is not None
        assign = Assign(
            self.generation,
            self.incarnation,
            self.placement,
            self.model,
            self.blocks,
            self.whole,
            self.leases.hold,
            at=self.version,
            begun=(self.watermark.low, self.watermark.above),
        )
        if self.base is None:
            return assign
        at = self.base.position
        return msgspec.structs.replace(
            assign, folder=self.base.folder, version=at.version, watermark=at.watermark, above=at.above
        )

    def plan(self) -> Plan:
        """All segments so far."""
        return Plan(
            self.generation, tuple(self.schedule.segments), self.final, self.incarnation, self.schedule.revision
        )

    def is_current(self, incarnation: int, epoch: int) -> bool:
        """Whether a message speaks of this incarnation and placement."""
        return self.placement is not None and (incarnation, epoch) == (self.incarnation, self.placement.epoch)

    def is_open(self, step: int) -> bool:
        """Whether `step` may still be committed."""
        if step == INIT_STEP:
            return self.version < 0
        phase = self.phases.open
        return phase is not None and phase.start <= step < phase.end and not self.watermark.has(step)

    def is_whole(self, step: int) -> bool:
        """Whether a slot of `step` counts only as one whole attempt."""
        return self.whole or step == INIT_STEP or self.schedule.window(step) != 0

    def announcement(self, commit: Commit) -> Committed:
        """The commit as servers hear of it."""
        keep, save = commit.version - 1 in self.pins, commit.version == self.saving
        return Committed(self.generation, self.epoch, commit, keep, save)

    def limit_phase(self) -> Segment | None:
        """The job is to end before step `limit`: does the open phase end earlier? Returns the segment for that."""
        limits = [n for n in (self.limit, self.spec.max_steps or None) if n is not None]
        phase = self.phases.open
        if not limits or phase is None or phase.end <= min(limits):
            return None
        if self.stop_reason is None:
            self.stop_reason = f"max_steps is {self.spec.max_steps}"
        self.limit = min(limits)
        self.closing = self.phases.end_at(self.limit)
        return self.closing

    def is_at_limit(self) -> bool:
        """Whether the job, which is to be stopped, is there."""
        return self.limit is None or self.watermark.low >= self.limit

    def unpin(self, version: int, reason: str) -> list[Effect]:
        """One reason less to keep `version`; servers are told when none is left."""
        if not self.pins.discard(version, reason):
            return []
        if version == self.version:
            # It is readable anyway, and may be needed again for another reason: say so with the next commit.
            self.unpin_next = version
            return []
        return [Send(s, Unpin(self.generation, self.incarnation, version)) for s in self.holders]

    def is_over(self) -> bool:
        """Whether the job has ended, one way or the other."""
        return self.state in ("finished", "failed")


def _number(name: str) -> tuple[int, str]:
    """Orders names by the number at their end."""
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits or 0), name
