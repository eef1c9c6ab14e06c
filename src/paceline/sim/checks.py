"""The rules, checked as things happen. Every check is O(what happened), never O(everything)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.coordinator.placement import DIFFERENT
from paceline.core.coordinator.recovery import RESUMED
from paceline.core.effects import (
    ChoiceFact,
    Complete,
    EvaluationRow,
    FactRow,
    IncarnationFact,
    LogRow,
    PhaseFact,
    PlacementFact,
    Send,
    StopFact,
    Write,
)
from paceline.core.hash_chain import START, extend
from paceline.core.sampling import place
from paceline.core.segments import Schedule
from paceline.core.server.block_store import SumKey
from paceline.core.server.dispatch import ServerCore
from paceline.core.window import Watermark, admits
from paceline.messages import Choose, Committed, EvalGrant, Grant, PhaseOver, PullReply
from paceline.sim.scenario import Scenario
from paceline.sim.symbols import Part, Reads, SymbolStore, Value
from paceline.sim.world import Violation
from paceline.types import INIT_STEP, UNLIMITED, Commit, Fence, NodeId, Placement, Segment, SlotId

_WATCHED = (Committed, Grant, Choose, EvalGrant, PhaseOver)


@dataclass(slots=True)
class Line:
    """What one incarnation is made of, from version 0 on: its own commits after those that it began from.

    `truth` has the values of each block by version; `work` what each version's step was made of.
    """

    log: list[Commit] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    truth: dict[int, list[Value]] = field(default_factory=dict)
    work: list[tuple[float, ...] | None] = field(default_factory=list)
    phase_versions: dict[int, int] = field(default_factory=dict)

    def cut(self, version: int) -> Line:
        """The same up to `version`."""
        end = version + 1
        return Line(
            self.log[:end],
            self.marks[:end],
            {block: values[:end] for block, values in self.truth.items()},
            self.work[:end],
            {phase: v for phase, v in self.phase_versions.items() if v <= version},
        )


class Checker:
    """Knows the durable log and what every version of every block is made of; raises `Violation`."""

    def __init__(self, scenario: Scenario) -> None:
        self.whole = not scenario.model.deterministic
        self.hold = scenario.cluster.held
        self.validators = scenario.validators
        self.careful = scenario.careful
        self.incarnation = 0
        self.placement: Placement | None = None
        self.epochs: dict[Fence, int] = {}
        self.lines: dict[int, Line] = {0: Line()}
        self.schedule = Schedule()
        self.closing: Segment | None = None
        self.watermark = Watermark()
        self.granted: dict[Fence, tuple[SlotId, NodeId]] = {}
        self.by_worker: dict[NodeId, list[Fence]] = {}
        self.void: set[Fence] = set()
        self.chosen: dict[SlotId, Fence] = {}
        self.results: dict[tuple[int, str, int], EvaluationRow] = {}
        self.excused = -1
        self.slots_done = 0
        self.copies = 0
        self._chains: dict[tuple[int, int], list[bytes]] = {}

    @property
    def line(self) -> Line:
        """The incarnation that goes on."""
        return self.lines[self.incarnation]

    @property
    def log(self) -> list[Commit]:
        """Its commits, and those it began from."""
        return self.line.log

    # ------------------------------------------------------------ the coordinator

    def wrote(self, write: Write) -> None:
        """A row is durable."""
        match write.row:
            case Commit() as commit:
                self._committed(commit)
            case EvaluationRow() as row:
                self._evaluated(row)
            case FactRow(fact=PhaseFact(segment=segment)):
                self.schedule.append(segment)
            case FactRow(fact=StopFact(closing=closing)) if closing is not None:
                self.closing = closing
                self.schedule.append(closing)
            case FactRow(fact=ChoiceFact(sealed=sealed)):
                self._chose(SlotId(sealed.step, sealed.slot), sealed.fence)
            case FactRow(fact=IncarnationFact() as fact):
                self._rewound(fact)
            case FactRow(fact=PlacementFact(placement=placement, why=why)):
                if why.endswith(DIFFERENT):
                    raise Violation(why)
                self._placed(placement)
            case LogRow() | FactRow():
                pass

    def _placed(self, placement: Placement) -> None:
        """Blocks change hands: what was leased and chosen before is void."""
        old = self.placement
        self.placement = placement
        if old is not None and placement.epoch < old.epoch:
            raise Violation(f"placement {placement.epoch} follows {old.epoch}")
        if old is not None and placement.epoch == old.epoch:
            if any(not set(old.copies(b)) <= set(placement.copies(b)) for b in range(len(old.owners))):
                raise Violation(f"a copy left its set within placement {old.epoch}")
            self.copies += 1
            return
        self.chosen.clear()

    def _rewound(self, fact: IncarnationFact) -> None:
        if self.careful and fact.why != RESUMED:
            raise Violation(f"the job went back ({fact.why}), though one server was lost at a time")
        self.placement = None
        if fact.number != self.incarnation + 1:
            raise Violation(f"incarnation {fact.number} follows {self.incarnation}")
        position = fact.position
        if position is None:
            self.lines[fact.number] = Line()
            self.watermark, self.schedule, version = Watermark(), Schedule(), -1
        else:
            self.lines[fact.number] = self.lines[position.incarnation].cut(position.version)
            self.watermark, version = Watermark(position.watermark, position.above), position.version
            self.schedule = Schedule(position.segments)
            if len(self.lines[fact.number].log) != position.version + 1:
                raise Violation(f"incarnation {fact.number} begins from a version that is not in the log")
            if self.lines[fact.number].marks[-1] != position.watermark:
                raise Violation(f"{fact.folder} says watermark {position.watermark}")
        self.excused = max(self.excused, version)  # a validation that was under way may have no result
        self.incarnation = fact.number
        self.chosen.clear()

    def restarted(self) -> None:
        """A new coordinator: what was void may be held again by its holder, since leases are soft."""
        self.void.clear()
        self.by_worker.clear()

    def completed(self, effect: Complete) -> None:
        """A checkpoint is about to be completed: do the servers' hash chains agree with the log?"""
        at = effect.checkpoint.position
        for block, claimed in enumerate(effect.chains):
            if self.chain(block, at.version, at.incarnation).hex() != claimed:
                raise Violation(f"the hash chain of block {block} in {effect.checkpoint.folder} is not the log's")

    def _committed(self, commit: Commit) -> None:
        line = self.line
        if commit.incarnation != self.incarnation:
            raise Violation(f"a commit of incarnation {commit.incarnation} in incarnation {self.incarnation}")
        if commit.version != len(line.log):
            raise Violation(f"commit {commit.version} follows {len(line.log) - 1} in the log")
        if (commit.step == INIT_STEP) != (commit.version == 0):
            raise Violation(f"version {commit.version} is made of step {commit.step}")
        num_slots = self.schedule.num_slots(commit.step)
        if len(commit.fences) != num_slots:
            raise Violation(f"step {commit.step} has {num_slots} slots, its commit {len(commit.fences)} fences")
        for index, fence in enumerate(commit.fences):
            slot = SlotId(commit.step, index)
            if self.granted.get(fence, (None, ""))[0] != slot:
                raise Violation(f"{fence} was not a lease of {slot}, but is committed for it")
            if self.placement is None or self.epochs[fence] != self.placement.epoch:
                raise Violation(f"{fence} was leased before the blocks changed hands, and is committed after it")
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
        line.log.append(commit)
        line.work.append(None)
        line.marks.append(self.watermark.low)

    def _is_whole(self, step: int) -> bool:
        return self.whole or step == INIT_STEP or self.schedule.window(step) != 0

    def _evaluated(self, row: EvaluationRow) -> None:
        validator = next(v for v in self.validators if v.name == row.name)
        if (row.incarnation, row.name, row.version) in self.results:
            raise Violation(f"validation {row.name} of version {row.version} has two results")
        self.results[row.incarnation, row.name, row.version] = row
        num_slots = -(-validator.data_len // validator.batch_size)
        expected = {"version": float(row.version), "slots": (2.0**num_slots - 1) / num_slots} if num_slots else {}
        if row.values != expected:
            raise Violation(f"validation {row.name} of version {row.version}: {row.values}, not {expected}")

    def sends(self, effect: Send) -> None:
        """The coordinator is about to send."""
        if not isinstance(effect.message, _WATCHED):
            return
        match effect.message:
            case Committed(commit=commit):
                self._is_written(commit, "announced")
            case Grant() as grant:
                slot = SlotId(grant.step, grant.slot)
                if self.granted.setdefault(grant.fence, (slot, effect.to)) != (slot, effect.to):
                    raise Violation(f"{grant.fence} names two leases")
                self.by_worker.setdefault(effect.to, []).append(grant.fence)
                self.epochs.setdefault(grant.fence, grant.epoch)
            case Choose() as choose:
                if self.chosen.get(SlotId(choose.step, choose.slot)) != choose.fence:
                    raise Violation(f"{choose.fence} is chosen before that is written")
            case EvalGrant(version=version) | PhaseOver(version=version):
                if version >= len(self.log):
                    raise Violation(f"version {version} is announced before it is written")

    def _chose(self, slot: SlotId, fence: Fence) -> None:
        if slot not in self.chosen and fence in self.void:
            raise Violation(f"{fence} was void when it was chosen for {slot}")
        if self.chosen.setdefault(slot, fence) != fence:
            raise Violation(f"two attempts are chosen for {slot}")

    def _is_written(self, commit: Commit, what: str) -> None:
        line = self.lines.get(commit.incarnation, Line())
        if commit.version >= len(line.log) or line.log[commit.version] != commit:
            raise Violation(f"commit {commit.version} is {what} before it is written")

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
        if self._is_out(store):
            return  # and does not know it: nothing will come of it
        reads: Reads | None = None
        for block, gradient in part.gradients.items():
            if gradient[:4] != (part.step, part.slot, part.fence, block):
                raise Violation(f"{name}: its buffer of block {block} holds {gradient[:5]}")
            if part.step != INIT_STEP and gradient.reads is not reads:
                reads = gradient.reads
                self.may_compute(part.step, reads, name)

    def _is_out(self, store: SymbolStore) -> bool:
        """Whether `store` is of a server that is no primary any more, since a placement that it has not entered."""
        epoch, owners = (0, ()) if self.placement is None else (self.placement.epoch, self.placement.owners)
        return store.node not in owners and store.place() < (self.incarnation, epoch)

    def may_compute(self, step: int, reads: Reads, name: str) -> None:
        """Lock-step reads version t of every block; a window bounds how old each may be."""
        if reads.incarnation != self.incarnation:
            return  # nothing will come of it
        window, line = self.schedule.window(step), self.line
        for block, (version, value) in enumerate(zip(reads.versions, reads.values, strict=True)):
            if not 0 <= version < len(line.truth[block]) or line.truth[block][version] != value:
                raise Violation(f"{name} read {value} as version {version} of block {block}")
            if window == 0 and version != step:
                raise Violation(f"{name} was computed on version {version} of block {block}: a mixed read")
            if window not in (0, UNLIMITED) and not admits(window, step, line.marks[version]):
                raise Violation(
                    f"{name} was computed on block {block} at version {version}, which has only the steps "
                    f"below {line.marks[version]}; the window is {window}"
                )

    def applied(self, store: SymbolStore, key: SumKey, commit: Commit, parts: Sequence[Part]) -> None:
        """A sum became a version."""
        self._is_written(commit, "applied")
        line = self.lines[commit.incarnation]
        if [p.slot for p in parts] != list(range(len(commit.fences))):
            raise Violation(f"commit of step {commit.step} applies slots {[p.slot for p in parts]}")
        goes_on = commit.incarnation == self.incarnation
        if goes_on and self._is_whole(commit.step) and tuple(p.fence for p in parts) != commit.fences:
            raise Violation(f"step {commit.step} applies {[p.fence for p in parts]}, the log says {commit.fences}")
        self._agree(commit, tuple(p.weight for p in parts))
        for block in store.blocks:
            values = line.truth.setdefault(block, [])
            if len(values) < commit.version:
                raise Violation(f"block {block} applies version {commit.version} after {len(values) - 1}")
            if len(values) == commit.version:
                values.append(store.current[block])
            elif values[commit.version] != store.current[block]:
                raise Violation(f"{store.node} has {store.current[block]}, another copy {values[commit.version]}")

    def loaded(self, store: SymbolStore, folder: str, version: int) -> None:
        """A server took its blocks from a checkpoint."""
        for block, value in store.current.items():
            if self.line.truth[block][version] != value:
                raise Violation(f"{folder} has {value} as version {version} of block {block}")

    def copied(self, store: SymbolStore, version: int, values: Sequence[Value]) -> None:
        """A server was sent some blocks."""
        for value in values:
            known = (line.truth.get(value.block, [])[version : version + 1] for line in self.lines.values())
            if [value] not in known:  # of which incarnation it is, the store does not know
                raise Violation(f"{store.node} was sent {value} as version {version}")

    def chain(self, block: int, version: int, incarnation: int) -> bytes:
        """The hash chain of a block, as the log says it must be."""
        known = self._chains.setdefault((incarnation, block), [START])
        for commit in self.lines[incarnation].log[len(known) - 1 : version + 1]:
            fences = next((f for blocks, f in commit.variants if block in blocks), commit.fences)
            known.append(extend(known[-1], commit.version, commit.step, fences))
        return known[version + 1]

    def _agree(self, commit: Commit, weights: tuple[float, ...]) -> None:
        """Every server applies slots of the same weight: where fences differ, attempts must not."""
        work = self.lines[commit.incarnation].work
        first = work[commit.version]
        if first is not None and first != weights:
            raise Violation(f"servers apply step {commit.step} with weights {weights} and {first}")
        work[commit.version] = weights

    def counted(self) -> tuple[float, int]:
        """Samples and empty slots of all commits, as the servers applied them."""
        samples, empty = 0.0, 0
        for commit, weights in zip(self.line.log, self.line.work, strict=True):
            if commit.step != INIT_STEP and weights is not None:
                samples += sum(weights) * self.schedule.segment(commit.step).batch_size
                empty += weights.count(0.0)
        return samples, empty

    def held(self, server: ServerCore, step: int) -> None:
        """A push was taken: how many slots wait for a lower one?"""
        entry = server.steps.get(step)
        if entry is not None and len(entry.attempts) > self.hold:
            raise Violation(f"{server.node} holds {len(entry.attempts)} slots of step {step}, hold is {self.hold}")

    def replied(self, server: ServerCore, reply: PullReply) -> None:
        """A server lets somebody read."""
        if reply.version >= len(self.lines[reply.incarnation].log):
            raise Violation(f"{server.node} gives out version {reply.version}, which is not in the log")

    # ------------------------------------------------------------ workers

    def has_version(self, reads: Reads, version: int, name: str) -> None:
        """A model must be exactly `version`."""
        truth = self.lines[reads.incarnation].truth
        for block, value in enumerate(reads.values):
            if truth[block][version] != value:
                raise Violation(f"{name} needs version {version} of block {block} and has {value}")

    def phase_ended(self, name: str, over: PhaseOver, reads: Reads, *, was_there: bool) -> None:
        """A worker leaves a phase."""
        if over.version < 0:
            if was_there:
                raise Violation(f"{name} took part in phase {over.phase} but was not given its last version")
            return
        first = self.lines[over.incarnation].phase_versions.setdefault(over.phase, over.version)
        if first != over.version:
            raise Violation(f"{name} leaves phase {over.phase} with version {over.version}, others with {first}")
        self.has_version(reads, over.version, name)

    def weight(self, segment: Segment, step: int, slot: int) -> float:
        """Samples of the slot over the slot batch."""
        at = place(segment, step)
        return min(segment.batch_size, at.samples - slot * segment.batch_size) / segment.batch_size
