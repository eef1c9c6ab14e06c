"""Which attempts of a slot count, in steps that are not committed yet. Rules 1 to 4.

`blocks/sums.py` does the arithmetic of the sums.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.effects import Send
from paceline.core.running_time import RunningTime
from paceline.core.server.ahead import Ahead
from paceline.core.server.assignment import Assignment
from paceline.core.server.attempt import Attempt
from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.core.server.held_versions import HeldVersions
from paceline.core.server.plan import KnownPlan
from paceline.core.server.refusals import Refusals
from paceline.core.server.replication import Replication
from paceline.core.window import window_refusal
from paceline.messages import Choose, Plan, Push, PushAck, Ready, Receipt, Sealed, Summed
from paceline.types import COORDINATOR, INIT_STEP, Commit, Fence, Hyper, NodeId


@dataclass(slots=True)
class StepAttempts:
    """All attempts of one step that is not committed yet, by slot and fence.

    `chosen` is the attempt of each slot that counts. `receipts` and `ready` are the reports to repeat. `bases` are the
    versions that the summed attempts were computed on, `reports` what came with their seals, and `foreign` such reports
    that another member sends. `summed` counts the slots that are added, in slot order; `told` is the count that the
    coordinator was last told. `revision` is that of the step's segment.
    """

    num_slots: int
    revision: int = 0
    attempts: dict[int, dict[Fence, Attempt]] = field(default_factory=dict)
    chosen: dict[int, Fence] = field(default_factory=dict)
    receipts: dict[tuple[int, Fence], Receipt] = field(default_factory=dict)
    ready: dict[tuple[Fence, ...], Ready] = field(default_factory=dict)
    bases: list[int] = field(default_factory=list)
    reports: list[Sealed] = field(default_factory=list)
    foreign: list[Sealed] = field(default_factory=list)
    summed: int = 0
    told: int = 0
    in_group: bool = False

    @property
    def hyper(self) -> Hyper:
        """The hyper-parameters of the step; () if they are not known, or the slots disagree.

        A member of a group knows those of its own slots: a step whose slots disagree fails the job.
        """
        hypers = [report.hyper for report in (*self.reports, *self.foreign)]
        known = bool(hypers) and all(hyper == hypers[0] for hyper in hypers)
        return hypers[0] if known and (self.in_group or len(hypers) == self.num_slots) else ()

    def sealed(self, slots: Mapping[int, Fence], applied: int) -> list[SealedAttempt] | None:
        """The attempts of `slots`, in slot order; None if one has not arrived, or its base is not `applied` yet."""
        found = []
        for slot, fence in sorted(slots.items()):
            attempt = self.attempts.get(slot, {}).get(fence)
            if attempt is None or not attempt.arrived or attempt.base > applied:
                return None
            found.append(attempt.as_sealed(slot, fence))
        return found

    def reduce(self, fences: tuple[Fence, ...], mine: Collection[int]) -> None:
        """Note that a group has summed these attempts; this member reports those of slots `mine`."""
        self.in_group = True
        for slot, attempts in sorted(self.attempts.items()):
            attempt = attempts.get(fences[slot])
            if attempt is None:
                continue
            self.bases.append(attempt.base)
            if attempt.report is not None:
                (self.reports if slot in mine else self.foreign).append(attempt.report)
        self.attempts.clear()
        self.chosen = dict(enumerate(fences))
        self.summed = self.num_slots


class Attempts:
    """The attempts of all steps that are not committed yet, for the blocks of which this server is the primary."""

    def __init__(
        self,
        assignment: Assignment,
        plan: KnownPlan,
        versions: HeldVersions,
        own: BlockGroup,
        ahead: Ahead,
        replication: Replication,
        refusals: Refusals,
        running: RunningTime,
    ) -> None:
        self._ahead = ahead
        self._assignment = assignment
        self._plan = plan
        self._versions = versions
        self._own = own
        self._replication = replication
        self._refusals = refusals
        self._running = running
        self._steps: dict[int, StepAttempts] = {}

    @property
    def steps(self) -> Mapping[int, StepAttempts]:
        """The attempts of each step that is not committed yet."""
        return self._steps

    def needs_one_attempt(self, step: int) -> bool:
        """Whether each slot of `step` counts as one attempt, the same on all servers (rule 2)."""
        return self._assignment.one_attempt or step == INIT_STEP or self._plan.schedule.window(step) != 0

    def _reads_ahead(self, step: int) -> bool:
        """Whether the version that `step` makes may be read before its commit."""
        in_group = bool(self._assignment.group) and step != INIT_STEP and self._plan.schedule.window(step) == 0
        return in_group or not self.needs_one_attempt(step)

    # ------------------------------------------------------------ pushes

    def push(self, sender: NodeId, push: Push, payload: Sequence[object], now: float) -> list[Send]:
        """Handle one push of a worker, and answer it."""
        problem = self._check(push)
        if problem is not None:
            return self._refusals.refuse(sender, push.req, *problem)
        if self._versions.is_over(push.step):
            return [Send(sender, PushAck(push.req, "late"))]
        step = self._steps.get(push.step)
        if step is None:
            schedule = self._plan.schedule
            step = self._steps[push.step] = StepAttempts(schedule.num_slots(push.step), push.revision)
        if push.slot in step.chosen:
            return [Send(sender, PushAck(push.req, "duplicate"))]
        attempts = step.attempts.setdefault(push.slot, {})
        attempt = attempts.get(push.fence)
        if attempt is None:
            attempt = attempts[push.fence] = Attempt(push.base)
        if attempt.arrived:
            return [Send(sender, PushAck(push.req, "duplicate"))]
        fresh = attempt.take(push, payload)
        if push.base > self._versions.applied:  # it counts once its base is committed: see `resume`
            return [Send(sender, PushAck(push.req, "held"), later=True)]
        if push.seal is None and fresh and not self.needs_one_attempt(push.step):
            key = SumKey(push.step, None)
            self._own.store.sums.anticipate(key, push.slot, push.fence, push.weight, fresh)
        # Reports to the coordinator go first: the step waits for them. The worker's answer only frees memory.
        out: list[Send] = []
        if attempt.arrived:
            out += self._complete(push, step, attempt, now)
        return [*out, Send(sender, PushAck(push.req, "held"), later=True)]

    def _check(self, push: Push) -> tuple[str, str] | None:
        """The rule that a push breaks, with a text; None if it breaks none."""
        incarnation, epoch = self._assignment.at
        if not self._assignment.entered or (push.incarnation, push.epoch) > (incarnation, epoch):
            return "plan", "this server does not hold these blocks yet"
        if push.incarnation != incarnation:
            return "incarnation", f"this is incarnation {incarnation}, not {push.incarnation}"
        if push.epoch != epoch:
            return "epoch", f"blocks are placed by epoch {epoch}, not {push.epoch}"
        if push.fence.generation > self._assignment.generation:
            return "plan", f"generation {push.fence.generation} has not spoken here yet"
        if self._versions.is_over(push.step):
            return None
        schedule = self._plan.schedule
        if not schedule.covers(push.step):
            return "plan", f"step {push.step} is not planned yet"
        if (problem := self._check_revision(push)) is not None:
            return problem
        if not 0 <= push.slot < schedule.num_slots(push.step):
            return "slot", f"step {push.step} has no slot {push.slot}"
        return self._check_base(push) or self._check_blocks(push)

    def _check_revision(self, push: Push) -> tuple[str, str] | None:
        """Check that a push was leased by the segment that its step has here (rule 19)."""
        known = self._plan.schedule.revision_of(push.step)
        if push.revision == known:
            return None
        detail = f"step {push.step} was leased by revision {push.revision} of the plan; here it has revision {known}"
        # This server has not received a newer plan yet: the worker repeats the push. An older lease is void.
        return ("plan" if push.revision > known else "revision"), detail

    def _check_base(self, push: Push) -> tuple[str, str] | None:
        """Check the version that a push was computed on: in the window, or handed out here before its commit."""
        if push.step == INIT_STEP:
            return None
        epoch = self._assignment.epoch
        if push.ahead not in (0, epoch):
            return (
                "base",
                f"version {push.base} was read in epoch {push.ahead} before its commit; this is epoch {epoch}",
            )
        # In a near group another member may have handed out that version, and applied its commit, before this one.
        follows = self._ahead.is_base(push) or (self._assignment.near and push.base > self._versions.applied)
        if push.base == push.step and follows and self._reads_ahead(push.step):
            return None
        watermark = self._versions.mark(push.base)
        return window_refusal(self._plan.schedule.window(push.step), push.step, push.base, watermark)

    def _check_blocks(self, push: Push) -> tuple[str, str] | None:
        blocks = self._own.blocks
        for frame in push.blocks:
            block = blocks.get(frame.block)
            if block is None:
                return "block", f"block {frame.block} is not held here"
            if (frame.dtype, frame.numel) != (block.dtype, block.numel):
                expected = f"{block.numel} {block.dtype}"
                return "block", f"block {frame.block} is {expected}, not {frame.numel} {frame.dtype}"
        if push.seal is not None and not blocks.keys() >= dict(push.seal.revs).keys():
            return "block", "the seal names a block that is not held here"
        return None

    def _complete(self, push: Push, step: StepAttempts, attempt: Attempt, now: float) -> list[Send]:
        """Let an arrived attempt count if attempts are interchangeable; otherwise report it to the coordinator."""
        number, slot, fence = push.step, push.slot, push.fence
        if self._assignment.group:  # it waits for the closing of the step: see `contributions`
            return []
        if not self.needs_one_attempt(number):
            step.chosen[slot] = fence
            return self._advance(number, step, now)
        if step.num_slots > 1:
            receipt = Receipt(*self._assignment.at, number, slot, fence, step.revision)
            step.receipts[slot, fence] = receipt
            return [Send(COORDINATOR, receipt)]
        key = SumKey(number, fence)
        self._own.store.sums.add(key, attempt.take_out(slot, fence))
        return self._ready(number, step, (fence,), key, [attempt.base], now)

    def resume(self, now: float) -> list[Send]:
        """Let the attempts count that were computed on the applied version before it was committed."""
        number = self._versions.applied
        step = self._steps.get(number)
        if step is None or self.needs_one_attempt(number):
            return []
        for slot, attempts in step.attempts.items():
            arrived = (fence for fence, attempt in attempts.items() if attempt.arrived)
            if slot not in step.chosen and (first := next(arrived, None)) is not None:
                step.chosen[slot] = first
        return self._advance(number, step, now) if step.chosen else []

    # ------------------------------------------------------------ steps of a group

    def reduced(self, number: int, fences: tuple[Fence, ...], mine: Collection[int], now: float) -> list[Send]:
        """Report a step as ready whose sum, which the store has, the group has made of these attempts.

        This member reports what came with the seals of slots `mine`.
        """
        step = self._steps.get(number)
        if step is None:
            schedule = self._plan.schedule
            step = self._steps[number] = StepAttempts(schedule.num_slots(number), schedule.revision_of(number))
        step.reduce(fences, mine)
        return self._ready(number, step, fences, SumKey(number, None), step.bases, now)

    def choose(self, message: Choose, now: float) -> list[Send]:
        """Let the attempt that the coordinator has chosen for a slot count."""
        step = self._steps.get(message.step)
        current = (message.incarnation, message.epoch) == self._assignment.at
        if not current or step is None or message.slot in step.chosen:
            return []
        step.chosen[message.slot] = message.fence
        for slot, fence in [k for k in step.receipts if k[0] == message.slot]:
            del step.receipts[slot, fence]
        return self._advance(message.step, step, now)

    def _advance(self, number: int, step: StepAttempts, now: float) -> list[Send]:
        """Add chosen attempts to the sum in slot order, up to the first slot that has none."""
        key = SumKey(number, None)
        while step.summed < step.num_slots and step.summed in step.chosen:
            fence = step.chosen[step.summed]
            attempt = step.attempts.pop(step.summed)[fence]
            step.bases.append(attempt.base)
            if attempt.report is not None:
                step.reports.append(attempt.report)
            self._own.store.sums.add(key, attempt.take_out(step.summed, fence))
            step.summed += 1
        if step.summed == step.num_slots:
            if step.ready:
                return []
            fences = tuple([step.chosen[i] for i in range(step.num_slots)])
            return self._ready(number, step, fences, key, step.bases, now)
        hold = self._assignment.hold
        if hold and step.num_slots > hold and step.summed - step.told >= max(1, hold // 4):
            step.told = step.summed
            return [self._summed(number, step)]
        return []

    def _summed(self, number: int, step: StepAttempts) -> Send:
        return Send(COORDINATOR, Summed(*self._assignment.at, number, step.told))

    def _ready(
        self, number: int, step: StepAttempts, fences: tuple[Fence, ...], key: SumKey, bases: list[int], now: float
    ) -> list[Send]:
        """Report a complete sum as ready; if these blocks have copies, send the sum to every copy first."""
        stale = lag = 0
        if number != INIT_STEP and bases:
            stale, lag = self._versions.age(number, bases)
        sums = self._own.store.sums
        adds = step.in_group or (0 in self._own.blocks and not self.needs_one_attempt(number))
        reports = tuple(step.reports) if adds else ()
        others = self._assignment.others
        partials = sums.partials(key)
        if others:
            partials = tuple((block, partial) for block, partial in partials if block not in others)
        ready = Ready(*self._assignment.at, number, fences, stale, lag, partials, reports, step.revision)
        if key.fence is None and number != INIT_STEP:
            self._ahead.expect(key, step.hyper)
        if self._replication.targets:
            return self._replication.send(key, ready, self._running.advance(now))
        return self._say_ready(step, ready)

    def _say_ready(self, step: StepAttempts, ready: Ready) -> list[Send]:
        step.ready[ready.fences] = ready
        if self._reads_ahead(ready.step):
            self._ahead.allow(ready.step)
        return [Send(COORDINATOR, ready)]

    def replicated(self, ready: Ready) -> list[Send]:
        """Report `ready` to the coordinator: every copy has its sum."""
        step = self._steps.get(ready.step)
        return [] if step is None else self._say_ready(step, ready)

    def repeat(self) -> list[Send]:
        """All reports that the coordinator has not answered with a choice or a commit."""
        out: list[Send] = []
        for number, step in self._steps.items():
            out += [Send(COORDINATOR, m) for m in (*step.receipts.values(), *step.ready.values())]
            if step.told and not step.ready:
                out.append(self._summed(number, step))
        return out

    # ------------------------------------------------------------ ends of steps

    def apply(self, commit: Commit) -> None:
        """Turn the sum that `commit` names into the next version of the blocks of which this server is the primary."""
        step = self._steps[commit.step]
        sum_per_attempt = commit.fences in step.ready and step.summed == 0
        key = SumKey(commit.step, commit.fences[0] if sum_per_attempt else None)
        if not sum_per_attempt:
            assert step.summed == step.num_slots, f"commit of step {commit.step} before it was ready"
        fences = commit.fences if sum_per_attempt else tuple(step.chosen[i] for i in range(step.num_slots))
        self._own.store.apply(key, commit)
        self._own.extend(commit, fences)
        step.ready.pop(commit.fences, None)
        self._replication.applied(commit.step, fences)
        self._drop(commit.step, sum_per_attempt=sum_per_attempt)

    def _drop(self, number: int, *, sum_per_attempt: bool) -> None:
        """Forget the attempts of a step; with `sum_per_attempt`, drop each attempt's own sum too."""
        step = self._steps.pop(number)
        if sum_per_attempt:
            for fences in {*step.ready, *self._replication.pending(number)}:
                self._own.store.sums.drop(SumKey(number, fences[0]))
        self._replication.forget(number)

    def drop_outdated(self, plan: Plan) -> bool:
        """Drop the attempts of steps that have another segment in `plan`, before it is taken; True if there are any."""
        outdated = self._plan.outdates(plan, [(number, step.revision) for number, step in self._steps.items()])
        self._drop_steps(outdated)
        return bool(outdated)

    def drop_all(self) -> None:
        """Drop the attempts and sums of all steps: none of them will be committed."""
        self._drop_steps(list(self._steps))

    def _drop_steps(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            summed = self._steps[number].summed > 0
            if summed or not self.needs_one_attempt(number):
                self._own.store.sums.drop(SumKey(number, None))
            self._drop(number, sum_per_attempt=not summed)

    def reset(self) -> None:
        """Forget all attempts: an incarnation begins. The store forgets its sums when it is opened."""
        self._steps.clear()
