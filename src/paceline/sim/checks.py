"""The rules, checked as things happen. Every check is O(what happened), never O(everything)."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.effects import EvaluationRow, LogRow, PlacementRow, Send, Write
from paceline.core.sampling import place
from paceline.core.schedule import Schedule
from paceline.core.server import ServerCore
from paceline.core.store import SumKey
from paceline.core.window import Watermark, admits
from paceline.messages import Choose, Committed, EvalGrant, Grant, PhaseOver, PullReply
from paceline.sim.scenario import Scenario
from paceline.sim.symbols import Part, Reads, SymbolStore, Value
from paceline.sim.world import Violation
from paceline.types import INIT_STEP, UNLIMITED, Commit, Fence, NodeId, Segment, SlotId


class Checker:
    """Knows the durable log and what every version of every block is made of; raises `Violation`."""

    def __init__(self, scenario: Scenario) -> None:
        self.whole = not scenario.model.deterministic
        self.hold = scenario.cluster.held
        self.validators = scenario.validators
        self.log: list[Commit] = []
        self.schedule = Schedule()
        self.watermark = Watermark()
        self.marks: list[int] = []
        self.truth: dict[int, list[Value]] = {}
        self.granted: dict[Fence, tuple[SlotId, NodeId]] = {}
        self.by_worker: dict[NodeId, list[Fence]] = {}
        self.void: set[Fence] = set()
        self.chosen: dict[SlotId, Fence] = {}
        self.results: dict[tuple[str, int], EvaluationRow] = {}
        self.phase_versions: dict[int, int] = {}
        self.slots_done = 0
        self.samples = 0.0
        self.skipped = 0
        self.weights: dict[int, tuple[float, ...]] = {}

    # ------------------------------------------------------------ the coordinator

    def wrote(self, write: Write) -> None:
        """A row is durable."""
        match write.row:
            case Commit() as commit:
                self._committed(commit)
            case Segment() as segment:
                self.schedule.append(segment)
            case EvaluationRow() as row:
                self._evaluated(row)
            case LogRow() | PlacementRow():
                pass

    def _committed(self, commit: Commit) -> None:
        if commit.version != len(self.log):
            raise Violation(f"commit {commit.version} follows {len(self.log) - 1} in the log")
        if (commit.step == INIT_STEP) != (commit.version == 0):
            raise Violation(f"version {commit.version} is made of step {commit.step}")
        num_slots = self.schedule.num_slots(commit.step)
        if len(commit.fences) != num_slots:
            raise Violation(f"step {commit.step} has {num_slots} slots, its commit {len(commit.fences)} fences")
        for index, fence in enumerate(commit.fences):
            slot = SlotId(commit.step, index)
            if self.granted.get(fence, (None, ""))[0] != slot:
                raise Violation(f"{fence} was not a lease of {slot}, but is committed for it")
            if self._is_whole(commit.step) and fence in self.void and self.chosen.get(slot) != fence:
                raise Violation(f"{fence} was void when it was committed for {slot}")
        if commit.step != INIT_STEP:
            if self.watermark.has(commit.step):
                raise Violation(f"step {commit.step} is committed twice")
            if self.schedule.window(commit.step) == 0 and commit.step != self.watermark.low:
                raise Violation(f"step {commit.step} is committed before step {self.watermark.low}")
            window = self.schedule.window(commit.step)
            if window != UNLIMITED and commit.staleness > window:
                raise Violation(f"step {commit.step} has staleness {commit.staleness}, the window is {window}")
            self.watermark.add(commit.step)
        self.slots_done += num_slots
        self.log.append(commit)
        self.marks.append(self.watermark.low)

    def _is_whole(self, step: int) -> bool:
        return self.whole or step == INIT_STEP or self.schedule.window(step) != 0

    def _evaluated(self, row: EvaluationRow) -> None:
        validator = next(v for v in self.validators if v.name == row.name)
        if (row.name, row.version) in self.results:
            raise Violation(f"validation {row.name} of version {row.version} has two results")
        self.results[row.name, row.version] = row
        num_slots = -(-validator.data_len // validator.batch_size)
        expected = {"version": float(row.version), "slots": (2.0**num_slots - 1) / num_slots} if num_slots else {}
        if row.values != expected:
            raise Violation(f"validation {row.name} of version {row.version}: {row.values}, not {expected}")

    def sends(self, effect: Send) -> None:
        """The coordinator is about to send."""
        match effect.message:
            case Committed(commit=commit):
                if commit.version >= len(self.log) or self.log[commit.version] != commit:
                    raise Violation(f"commit {commit.version} is announced before it is written")
            case Grant() as grant:
                slot = SlotId(grant.step, grant.slot)
                if self.granted.setdefault(grant.fence, (slot, effect.to)) != (slot, effect.to):
                    raise Violation(f"{grant.fence} names two leases")
                self.by_worker.setdefault(effect.to, []).append(grant.fence)
            case Choose() as choose:
                slot = SlotId(choose.step, choose.slot)
                if slot not in self.chosen and choose.fence in self.void:
                    raise Violation(f"{choose.fence} was void when it was chosen for {slot}")
                if self.chosen.setdefault(slot, choose.fence) != choose.fence:
                    raise Violation(f"two attempts are chosen for {slot}")
            case EvalGrant(version=version) | PhaseOver(version=version):
                if version >= len(self.log):
                    raise Violation(f"version {version} is announced before it is written")

    def voids(self, fence: Fence) -> None:
        """Its holder gave the lease back."""
        self.void.add(fence)

    def lost(self, worker: NodeId) -> None:
        """The coordinator took a worker for lost, and all its leases with it."""
        self.void.update(self.by_worker.pop(worker, ()))

    # ------------------------------------------------------------ servers

    def added(self, store: SymbolStore, key: SumKey, part: Part, before: Sequence[Part]) -> None:
        """An attempt joins a sum: in slot order, its own gradients, computed on a state that is allowed."""
        name = f"slot {part.slot} of step {part.step} ({part.fence})"
        if part.step != key.step or (key.fence is not None and key.fence != part.fence):
            raise Violation(f"{name} is added to the sum of {key}")
        if part.slot != len(before):
            raise Violation(f"{name} is added after {len(before)} slots")
        reads: Reads | None = None
        for block, gradient in part.gradients.items():
            if gradient[:4] != (part.step, part.slot, part.fence, block):
                raise Violation(f"{name}: its buffer of block {block} holds {gradient[:5]}")
            if part.step != INIT_STEP and gradient.reads is not reads:
                reads = gradient.reads
                self.may_compute(part.step, reads, name)

    def may_compute(self, step: int, reads: Reads, name: str) -> None:
        """Lock-step reads version t of every block; a window bounds how old each may be."""
        window = self.schedule.window(step)
        for block, (version, value) in enumerate(zip(reads.versions, reads.values, strict=True)):
            if not 0 <= version < len(self.truth[block]) or self.truth[block][version] != value:
                raise Violation(f"{name} read {value} as version {version} of block {block}")
            if window == 0 and version != step:
                raise Violation(f"{name} was computed on version {version} of block {block}: a mixed read")
            if window not in (0, UNLIMITED) and not admits(window, step, self.marks[version]):
                raise Violation(
                    f"{name} was computed on block {block} at version {version}, which has only the steps "
                    f"below {self.marks[version]}; the window is {window}"
                )

    def applied(self, store: SymbolStore, key: SumKey, commit: Commit, parts: Sequence[Part]) -> None:
        """A sum became a version."""
        if commit.version >= len(self.log) or self.log[commit.version] != commit:
            raise Violation(f"commit {commit.version} is applied before it is written")
        if [p.slot for p in parts] != list(range(len(commit.fences))):
            raise Violation(f"commit of step {commit.step} applies slots {[p.slot for p in parts]}")
        if self._is_whole(commit.step) and tuple(p.fence for p in parts) != commit.fences:
            raise Violation(f"step {commit.step} applies {[p.fence for p in parts]}, the log says {commit.fences}")
        self._agree(commit, tuple(p.weight for p in parts))
        for block in store.blocks:
            values = self.truth.setdefault(block, [])
            if len(values) != commit.version:
                raise Violation(f"block {block} applies version {commit.version} after {len(values) - 1}")
            values.append(store.current[block])

    def _agree(self, commit: Commit, weights: tuple[float, ...]) -> None:
        """Every server applies slots of the same weight: where fences differ, attempts must not."""
        first = self.weights.setdefault(commit.version, weights)
        if first != weights:
            raise Violation(f"servers apply step {commit.step} with weights {weights} and {first}")
        if first is weights and commit.step != INIT_STEP:
            self.samples += sum(weights) * self.schedule.segment(commit.step).batch_size
            self.skipped += weights.count(0.0)

    def held(self, server: ServerCore, step: int) -> None:
        """A push was taken: how many slots wait for a lower one?"""
        entry = server.steps.get(step)
        if entry is not None and len(entry.attempts) > self.hold:
            raise Violation(f"{server.node} holds {len(entry.attempts)} slots of step {step}, hold is {self.hold}")

    def replied(self, server: ServerCore, reply: PullReply) -> None:
        """A server lets somebody read."""
        if reply.version >= len(self.log):
            raise Violation(f"{server.node} gives out version {reply.version}, which is not in the log")

    # ------------------------------------------------------------ workers

    def has_version(self, reads: Reads, version: int, name: str) -> None:
        """A model must be exactly `version`."""
        for block, value in enumerate(reads.values):
            if self.truth[block][version] != value:
                raise Violation(f"{name} needs version {version} of block {block} and has {value}")

    def phase_ended(self, name: str, over: PhaseOver, reads: Reads, *, was_there: bool) -> None:
        """A worker leaves a phase."""
        if over.version < 0:
            if was_there:
                raise Violation(f"{name} took part in phase {over.phase} but was not given its last version")
            return
        first = self.phase_versions.setdefault(over.phase, over.version)
        if first != over.version:
            raise Violation(f"{name} leaves phase {over.phase} with version {over.version}, others with {first}")
        self.has_version(reads, over.version, name)

    def weight(self, segment: Segment, step: int, slot: int) -> float:
        """Samples of the slot over the slot batch."""
        at = place(segment, step)
        return min(segment.batch_size, at.samples - slot * segment.batch_size) / segment.batch_size
