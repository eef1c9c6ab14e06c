"""Check the rules of the coordinator: what it may write to the log, and what it may announce to other processes.

Each check looks only at one row or message and the record, never at the whole job.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

import msgspec

from paceline.config.dials import ALLREDUCE
from paceline.core.coordinator.placement import DIFFERENT
from paceline.core.coordinator.tables.incarnation import RESUMED
from paceline.core.effects import (
    ChoiceFact,
    Complete,
    EvaluationRow,
    FactRow,
    IncarnationFact,
    LogRow,
    PhaseFact,
    PlacementFact,
    SegmentFact,
    Send,
    StopFact,
    Write,
)
from paceline.messages import Choose, Committed, EvalGrant, Grant, PhaseOver
from paceline.sim.host_names import host_of, number_of
from paceline.sim.live import hyper_of
from paceline.sim.record import Record
from paceline.sim.scenario import Scenario
from paceline.sim.world import Violation
from paceline.types import (
    INIT_STEP,
    UNLIMITED,
    Commit,
    DialChange,
    Fence,
    Measured,
    NodeId,
    Placement,
    Segment,
    SlotId,
)


class _Granted(NamedTuple):
    """A lease: its slot and worker, the incarnation and epoch in which it was granted, and its revision."""

    slot: SlotId
    worker: NodeId
    at: tuple[int, int]
    revision: int


_WATCHED = (Committed, Grant, Choose, EvalGrant, PhaseOver)


class LogChecks:
    """Checks each row that the coordinator writes, and each message before it is sent. Raises `Violation`.

    A rewind may have ended validations of versions up to `excused` without a result. `results` has the results of
    validations by (incarnation, validator, version). `flipped` are the servers with copies in which a bit was
    flipped; copies were found to be different `different` times. The blocks moved to another reducer
    `moves` times.
    """

    def __init__(self, record: Record, scenario: Scenario) -> None:
        self._record = record
        self._one_attempt = not scenario.model.deterministic
        self._as_one: set[tuple[int, int]] = set()  # (incarnation, version) of commits whose slots were whole attempts
        self._whole = False
        self._scenario = scenario
        self._validators = scenario.validators
        self._careful = scenario.careful
        self.results: dict[tuple[int, str, int], EvaluationRow] = {}
        self.excused = -1
        self.slots_done = 0
        self.copies = 0
        self.moves = 0
        self.flipped: set[NodeId] = set()
        self.different = 0
        self._granted: dict[Fence, _Granted] = {}
        self._leased: dict[tuple[int, int], int] = {}
        self._changes = 0
        self._plans: dict[int, tuple[int, Segment]] = {}
        self._by_worker: dict[NodeId, list[Fence]] = {}
        self._void: set[Fence] = set()
        self._chosen: dict[SlotId, Fence] = {}
        self._shown: dict[int, dict[str, Measured]] = {}

    def wrote(self, write: Write) -> None:
        """Check a row that became durable, and add it to the record."""
        match write.row:
            case Commit() as commit:
                self._committed(commit)
            case EvaluationRow() as row:
                self._evaluated(row)
            case FactRow(fact=PhaseFact(segment=segment, more=more)):
                self._record.plan((segment, *more))
            case FactRow(fact=SegmentFact() as fact):
                self._changed(fact)
            case FactRow(fact=StopFact(closing=closing)) if closing is not None:
                self._record.close(closing)
            case FactRow(fact=ChoiceFact(sealed=sealed)):
                self._chose(SlotId(sealed.step, sealed.slot), sealed.fence)
            case FactRow(fact=IncarnationFact() as fact):
                self._rewound(fact)
            case FactRow(fact=PlacementFact(placement=placement, why=why, whole_attempts=whole)):
                self._whole = whole
                if why.endswith(DIFFERENT):
                    self._differ(why)
                self._placed(placement)
            case LogRow() | FactRow():
                pass

    def _changed(self, fact: SegmentFact) -> None:
        """Check that dials change only for steps of which nothing is leased or committed (rule 19)."""
        record, leased = self._record, -1
        if fact.change != DialChange():
            self._changes += 1
            self._shown = {step: seen for step, seen in self._shown.items() if step < fact.step}
            leased = self._leased.get(
                (record.incarnation, 0 if record.placement is None else record.placement.epoch), -1
            )
        if fact.step <= max(leased, *record.watermark.above[-1:], record.watermark.low - 1):
            raise Violation(f"dials change from step {fact.step} on, but step {leased} was leased")
        record.plan(fact.segments)

    def is_outdated(self, step: int, fence: Fence) -> bool:
        """Whether the lease `fence` was made by another segment than the one that `step` has in the log now."""
        schedule = self._record.schedule
        if step == INIT_STEP or fence not in self._granted:
            return False
        return not schedule.covers(step) or self._granted[fence].revision != schedule.revision_of(step)

    def flip(self, server: NodeId) -> None:
        """Note that a bit is flipped in a copy on `server`."""
        self.flipped.add(server)

    def _differ(self, why: str) -> None:
        """Check that copies differ only after a bit was flipped (a flipped copy may have become a primary since)."""
        if not self.flipped:
            raise Violation(why)
        self.different += 1

    def _placed(self, placement: Placement) -> None:
        """Check a new placement: within an epoch, copies are only added. A new epoch makes earlier choices void."""
        old = self._record.placement
        self._record.place(placement)
        self.moves += old is not None and bool(old.group) != bool(placement.group)
        if old is not None and placement.epoch < old.epoch:
            raise Violation(f"placement epoch {placement.epoch} is written after epoch {old.epoch}")
        if old is not None and placement.epoch == old.epoch:
            if any(not set(old.copies(b)) <= set(placement.copies(b)) for b in range(len(old.owners))):
                raise Violation(
                    f"placement epoch {old.epoch} lost a copy of a block; within an epoch, copies may only be added"
                )
            self.copies += 1
            return
        self._chosen.clear()

    def _rewound(self, fact: IncarnationFact) -> None:
        record = self._record
        if self._careful and fact.why != RESUMED:
            raise Violation(f"the job was rewound ({fact.why}), but servers were lost one at a time")
        if fact.number != record.incarnation + 1:
            raise Violation(f"incarnation {fact.number} follows {record.incarnation}")
        version, position = record.rewind(fact), fact.position
        if position is not None:
            if len(record.log) != version + 1:
                raise Violation(f"incarnation {fact.number} begins from a version that is not in the log")
            if record.line.marks[-1] != position.watermark:
                raise Violation(
                    f"checkpoint {fact.folder} has watermark {position.watermark}, the log {record.line.marks[-1]}"
                )
        self.excused = max(self.excused, version)
        self._chosen.clear()

    def restarted(self) -> None:
        """Forget which leases are void, because a new coordinator starts: workers report all their leases again."""
        self._void.clear()
        self._by_worker.clear()
        self._leased.clear()  # a worker may report its lease too late: then its revision voids it

    def completed(self, effect: Complete) -> None:
        """Check a checkpoint before it is completed: the servers' hash chains must agree with the log."""
        at = effect.checkpoint.position
        for block, claimed in enumerate(effect.chains):
            if self._record.chain(block, at.version, at.incarnation).hex() != claimed:
                raise Violation(f"the hash chain of block {block} in {effect.checkpoint.folder} is not the log's")

    def _committed(self, commit: Commit) -> None:
        record = self._record
        if commit.incarnation != record.incarnation:
            raise Violation(f"a commit of incarnation {commit.incarnation} in incarnation {record.incarnation}")
        if commit.version != len(record.log):
            raise Violation(f"commit {commit.version} follows {len(record.log) - 1} in the log")
        if (commit.step == INIT_STEP) != (commit.version == 0):
            raise Violation(f"version {commit.version} is made of step {commit.step}")
        num_slots = record.schedule.num_slots(commit.step)
        if len(commit.fences) != num_slots:
            raise Violation(f"step {commit.step} has {num_slots} slots, its commit {len(commit.fences)} fences")
        self._check_fences(commit)
        if self.needs_one_attempt(commit.step):
            self._as_one.add((commit.incarnation, commit.version))
        self._check_kinds(commit)
        if commit.step != INIT_STEP:
            self._check_reducer(commit.step)
            self._check_order(commit)
            self._check_dials(commit)
        self.slots_done += num_slots
        record.commit(commit)

    def _check_fences(self, commit: Commit) -> None:
        placement = self._record.placement
        for index, fence in enumerate(commit.fences):
            slot = SlotId(commit.step, index)
            granted = self._granted.get(fence)
            if granted is None or granted.slot != slot:
                raise Violation(f"{fence} was not a lease of {slot}, but is committed for it")
            if placement is None or granted.at[1] != placement.epoch:
                raise Violation(f"{fence} was leased in an earlier placement epoch than its commit")
            if self.is_outdated(commit.step, fence):
                raise Violation(f"{fence} was leased by another revision of the plan than its commit")
            if self.needs_one_attempt(commit.step) and fence in self._void and self._chosen.get(slot) != fence:
                raise Violation(f"{fence} was void when it was committed for {slot}")

    def _check_kinds(self, commit: Commit) -> None:
        """Check that no slot counts as attempts of unequal workers, a part of each (rule 12)."""
        if not self._scenario.unequal:
            return
        for index, fence in enumerate(commit.fences):
            fences = {fence, *(others[index] for _, others in commit.variants)}
            hosts = {host_of(self._scenario, number_of(self._granted[f].worker)) for f in fences if f in self._granted}
            if len(hosts) > 1:
                raise Violation(f"slot {index} of step {commit.step} counts as attempts of workers on {sorted(hosts)}")

    def _check_reducer(self, step: int) -> None:
        """Check that the slots of a step met where its segment says: on servers, or in a group."""
        mode = self._record.schedule.segment(step).mode
        if self._scenario.cluster.collective and (mode == ALLREDUCE) != self._record.in_group:
            raise Violation(f"step {step} of mode {mode} was committed by {self._record.placement}")

    def _check_order(self, commit: Commit) -> None:
        watermark, window = self._record.watermark, self._record.schedule.window(commit.step)
        if watermark.has(commit.step):
            raise Violation(f"step {commit.step} is committed twice")
        if window == 0 and commit.step != watermark.low:
            raise Violation(f"step {commit.step} is committed before step {watermark.low}")
        if window != UNLIMITED and commit.staleness > window:
            raise Violation(f"step {commit.step} has staleness {commit.staleness}, the window is {window}")

    def _check_dials(self, commit: Commit) -> None:
        """Check the hyper-parameters, and that a step which is computed again after a rewind has the same dials."""
        segment = self._record.schedule.segment(commit.step)
        if commit.hyper != hyper_of(commit.step, segment):
            raise Violation(f"step {commit.step} is committed with {commit.hyper}, its segment is {segment}")
        changes, before = self._plans.get(commit.step, (-1, segment))
        if changes == self._changes and not _is_same(segment, before):
            raise Violation(f"step {commit.step} had {before} before a rewind, and has {segment} now")
        self._plans[commit.step] = self._changes, segment

    def needs_one_attempt(self, step: int) -> bool:
        """Whether each slot of the step counts as one attempt, the same on all servers (rule 2)."""
        is_whole = self._one_attempt or self._whole or self._record.in_group
        return is_whole or step == INIT_STEP or self._record.schedule.window(step) != 0

    def was_one_attempt(self, commit: Commit) -> bool:
        """Whether each slot of `commit`, which is written, counted as one attempt when it was committed."""
        return (commit.incarnation, commit.version) in self._as_one

    def _evaluated(self, row: EvaluationRow) -> None:
        validator = next(v for v in self._validators if v.name == row.name)
        if (row.incarnation, row.name, row.version) in self.results:
            raise Violation(f"validation {row.name} of version {row.version} has two results")
        self.results[row.incarnation, row.name, row.version] = row
        num_slots = -(-validator.data_len // validator.batch_size)
        expected = {"version": float(row.version), "slots": (2.0**num_slots - 1) / num_slots} if num_slots else {}
        if row.values != expected:
            raise Violation(f"validation {row.name} of version {row.version}: {row.values}, not {expected}")

    def sends(self, effect: Send) -> None:
        """Check a message before the coordinator sends it: what the message announces must be in the log."""
        if not isinstance(effect.message, _WATCHED):
            return
        match effect.message:
            case Committed(commit=commit):
                if not self._record.is_written(commit):
                    raise Violation(f"commit {commit.version} is announced before it is written")
            case Grant() as grant:
                slot = SlotId(grant.step, grant.slot)
                granted = _Granted(slot, effect.to, (grant.incarnation, grant.epoch), grant.revision)
                if self._granted.setdefault(grant.fence, granted) != granted:
                    raise Violation(f"{grant.fence} names two leases")
                if self.is_outdated(grant.step, grant.fence):
                    raise Violation(f"step {grant.step} is leased by another segment than that of the log")
                self._by_worker.setdefault(effect.to, []).append(grant.fence)
                self._leased[granted.at] = max(grant.step, self._leased.get(granted.at, -1))
                self._shows(grant)
            case Choose() as choose:
                if self._chosen.get(SlotId(choose.step, choose.slot)) != choose.fence:
                    raise Violation(f"{choose.fence} is announced as chosen before that is written")
            case EvalGrant(version=version) | PhaseOver(version=version):
                if version >= len(self._record.log):
                    raise Violation(f"version {version} is announced before it is written")

    def _shows(self, grant: Grant) -> None:
        """Check that turns of one step in lock-step see the same metrics, whenever they are leased (rule 8)."""
        if grant.step == INIT_STEP or self._record.schedule.window(grant.step) != 0:
            return
        before = self._shown.setdefault(grant.step, grant.metrics)
        for name in before.keys() | grant.metrics.keys():
            found = {measured for seen in (before, grant.metrics) if (measured := seen.get(name)) is not None}
            if before.get(name) != grant.metrics.get(name) and max(m.step for m in found) > self.excused:
                raise Violation(f"turns of step {grant.step} see {before} and {grant.metrics}")

    def _chose(self, slot: SlotId, fence: Fence) -> None:
        if slot not in self._chosen and fence in self._void:
            raise Violation(f"{fence} was void when it was chosen for {slot}")
        if self._chosen.setdefault(slot, fence) != fence:
            raise Violation(f"two attempts are chosen for {slot}")

    def voids(self, fence: Fence) -> None:
        """Mark the lease `fence` as void, because its worker gave it back."""
        self._void.add(fence)

    def lost(self, worker: NodeId) -> None:
        """Mark all leases of `worker` as void, because the coordinator evicted it."""
        self._void.update(self._by_worker.pop(worker, ()))

    def evict_all_but(self, members: Container[NodeId]) -> None:
        """Mark the leases of every worker that is not among `members` as void."""
        for node in [n for n in self._by_worker if n not in members]:
            self.lost(node)


def _is_same(one: Segment, other: Segment) -> bool:
    """Whether two segments give a step the same samples and dials."""
    return msgspec.structs.replace(one, revision=0) == msgspec.structs.replace(other, revision=0)
