"""A parameter server's protocol: which attempts count, when a block is ready, in which order commits apply.

Events in (`handle`, `tick`), sends out; arithmetic is behind `BlockStore`. Rules 1 to 4, 6, 7 and 11 of the design.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from paceline.core.attempts import Attempt, StepSum
from paceline.core.chain import START, extend
from paceline.core.effects import Send
from paceline.core.parking import Parking
from paceline.core.parts import PART_NBYTES, cuts
from paceline.core.placement import owned
from paceline.core.schedule import Schedule
from paceline.core.store import BlockStore, SumKey
from paceline.core.window import Watermark, admits, staleness
from paceline.errors import CheckpointError
from paceline.messages import (
    Abort,
    Assign,
    Beat,
    BeatAck,
    Choose,
    Committed,
    Message,
    NotLoaded,
    Plan,
    Pull,
    PullReply,
    Push,
    PushAck,
    Ready,
    Receipt,
    Refused,
    Register,
    Saved,
    SaveOver,
    Summed,
    Unpin,
    Welcome,
)
from paceline.types import COORDINATOR, INIT_STEP, BlockSpec, Commit, Fence, NodeId, SavedFile

_MAX_MARKS = 100_000  # with an unlimited window: versions so old that nobody can still be working on them


class ServerCore:
    """State of one server. Mutated only through `handle`, `tick`, `saved` and `forget`.

    `saving` is the version that is being written to a checkpoint, None while there is none.
    """

    def __init__(
        self, node: NodeId, store: BlockStore, *, heartbeat_s: float = 0.5, part_nbytes: int = PART_NBYTES
    ) -> None:
        self.node = node
        self.store = store
        self.part_nbytes = part_nbytes
        self.heartbeat_s = heartbeat_s
        self.generation = 0
        self.incarnation = 0
        self.epoch = 0
        self.whole = False
        self.hold = 0
        self.applied = -1
        self.final = -1
        self.watermark = Watermark()
        self.schedule = Schedule()
        self.blocks: dict[int, BlockSpec] = {}
        self.failed: Abort | None = None
        self.steps: dict[int, StepSum] = {}
        self.refused: dict[str, int] = {}
        self.chains: dict[int, bytes] = {}
        self.saving: int | None = None
        self._saved: Saved | None = None
        self._frozen_chains: dict[int, bytes] = {}
        self._not_loaded: NotLoaded | None = None
        self._assigned = False
        self._marks: dict[int, int] = {}
        self._kept: set[int] = set()
        self._parking = Parking()
        self._next_beat = 0.0
        self._gap_told = -2

    # ------------------------------------------------------------ events

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Send]:
        """One message. Whatever is wrong with it is refused by name; nothing raises."""
        match message:
            case Push():
                return self._push(sender, message, payload)
            case Pull():
                return self._pull(sender, message)
            case BeatAck(generation=generation) | Welcome(generation=generation):
                self.generation = max(self.generation, generation)
                return []
            case Committed() | Choose() | Assign() | Plan() | Unpin() | SaveOver() | Abort():
                if message.generation < self.generation:
                    self.refused["generation"] = self.refused.get("generation", 0) + 1
                    return []
                self.generation = message.generation
                return self._ordered(message, now)
            case _:
                return []

    def tick(self, now: float) -> list[Send]:
        """Heartbeat; whatever the coordinator has not answered yet is said again with it."""
        if now < self._next_beat:
            return []
        out = [self._beat(now)]
        for number, step in self.steps.items():
            out += [Send(COORDINATOR, m) for m in (*step.receipts.values(), *step.ready.values())]
            if step.told and not step.ready:
                out.append(self._summed(number, step))
        out += [Send(COORDINATOR, m) for m in (self._saved, self._not_loaded) if m is not None]
        return out

    def introduce(self, introduction: Register) -> Register:
        """The first message to a coordinator, with what this server has; everything else follows with the next tick."""
        self._next_beat = 0.0
        return msgspec.structs.replace(
            introduction,
            incarnation=self.incarnation,
            epoch=self.epoch,
            applied=self.applied,
            kept=tuple(sorted(self._kept)),
        )

    def saved(self, version: int, files: tuple[SavedFile, ...], problem: str) -> list[Send]:
        """The frozen version is written, or `problem` says why not."""
        if version != self.saving:
            return []
        chains = tuple(sorted(self._frozen_chains.items()))
        self._saved = Saved(self.incarnation, self.epoch, version, files, chains, problem)
        return [Send(COORDINATOR, self._saved)]

    def forget(self, peer: NodeId) -> None:
        """The session with `peer` is over: nobody waits for an answer there."""
        self._parking.forget(peer)

    def _beat(self, now: float) -> Send:
        self._next_beat = now + self.heartbeat_s
        kept = tuple(sorted(self._kept))
        segments = len(self.schedule.segments)
        return Send(COORDINATOR, Beat(self.node, self.incarnation, self.epoch, self.applied, segments, kept))

    def _ordered(
        self, message: Committed | Choose | Assign | Plan | Unpin | SaveOver | Abort, now: float
    ) -> list[Send]:
        match message:
            case Committed():
                return self._commit(message, now)
            case Choose():
                return self._choose(message)
            case Assign():
                return self._assign(message, now)
            case Plan(segments=segments, final=final, incarnation=incarnation):
                if incarnation == self.incarnation:
                    for segment in segments[len(self.schedule.segments) :]:
                        self.schedule.append(segment)
                    self.final = max(self.final, final)
                    self._finish()
            case Unpin(incarnation=incarnation, version=version):
                if incarnation == self.incarnation:
                    self._kept.discard(version)
                    self.store.release(version)
            case SaveOver(incarnation=incarnation, version=version):
                if incarnation == self.incarnation and version == self.saving:
                    self.saving = self._saved = None
            case Abort():
                self.failed = message
        return []

    def _assign(self, message: Assign, now: float) -> list[Send]:
        """Enter an incarnation, or a placement of it: the only way, and what was held before is forgotten."""
        there = message.incarnation, message.placement.epoch
        if there <= (self.incarnation, self.epoch):
            return []
        self.incarnation, self.epoch = there
        self._assigned = False
        self._forget_all()
        self.whole, self.hold = message.whole, message.hold
        mine = owned(message.placement.owners, self.node)
        self.blocks = {b: message.blocks[b] for b in mine}
        self.store.open(message.spec, [message.blocks[b] for b in mine])
        self.chains = dict.fromkeys(mine, START)
        if message.folder and mine:
            try:
                self.chains.update(self.store.load(message.folder, message.version))
            except CheckpointError as error:
                self._not_loaded = NotLoaded(self.incarnation, self.epoch, message.folder, str(error))
                return [Send(COORDINATOR, self._not_loaded)]
        if message.folder:
            self.applied = message.version
            self.watermark = Watermark(message.watermark, message.above)
            self._marks[self.applied] = self.watermark.low
        self._assigned = True
        return [self._beat(now), *self._answer(self._parking.early())]

    def _forget_all(self) -> None:
        self.applied = self.final = -1
        self.watermark = Watermark()
        self.schedule = Schedule()
        self.saving = self._saved = self._not_loaded = None
        self._gap_told = -2
        self.steps.clear()
        self._marks.clear()
        self._kept.clear()
        self._parking.restart()

    # ------------------------------------------------------------ pushes

    def _refuse(self, sender: NodeId, req: int, rule: str, detail: str) -> list[Send]:
        self.refused[rule] = self.refused.get(rule, 0) + 1
        return [Send(sender, Refused(req, rule, detail))]

    def _push(self, sender: NodeId, push: Push, payload: Sequence[object]) -> list[Send]:
        problem = self._check_push(push)
        if problem:
            return self._refuse(sender, push.req, *problem)
        if self._is_over(push.step):
            return [Send(sender, PushAck(push.req, "late"))]
        step = self.steps.get(push.step)
        if step is None:
            step = self.steps[push.step] = StepSum(self.schedule.num_slots(push.step))
        if push.slot in step.chosen:
            return [Send(sender, PushAck(push.req, "duplicate"))]
        attempts = step.attempts.setdefault(push.slot, {})
        attempt = attempts.get(push.fence)
        if attempt is None:
            attempt = attempts[push.fence] = Attempt(push.base)
        if attempt.whole:
            return [Send(sender, PushAck(push.req, "duplicate"))]
        fresh = attempt.take(push, payload)
        if push.seal is None and fresh and not self._is_whole(push.step):
            self.store.anticipate(SumKey(push.step, None), push.slot, push.fence, push.weight, fresh)
        # What the step waits for goes out first; the worker needs its answer only to reuse memory.
        out: list[Send] = []
        if attempt.whole:
            out += self._complete(push.step, step, push.slot, push.fence, attempt)
        return [*out, Send(sender, PushAck(push.req, "held"))]

    def _check_push(self, push: Push) -> tuple[str, str] | None:
        if not self._assigned or (push.incarnation, push.epoch) > (self.incarnation, self.epoch):
            return "plan", "this server does not hold these blocks yet"
        if push.incarnation != self.incarnation:
            return "incarnation", f"this is incarnation {self.incarnation}, not {push.incarnation}"
        if push.epoch != self.epoch:
            return "epoch", f"blocks are placed by epoch {self.epoch}, not {push.epoch}"
        if push.fence.generation > self.generation:
            return "plan", f"generation {push.fence.generation} has not spoken here yet"
        if self._is_over(push.step):
            return None
        if not self.schedule.covers(push.step):
            return "plan", f"step {push.step} is not planned yet"
        if not 0 <= push.slot < self.schedule.num_slots(push.step):
            return "slot", f"step {push.step} has no slot {push.slot}"
        if push.step != INIT_STEP:
            mark = self._marks.get(push.base)
            if mark is None or not admits(self.schedule.window(push.step), push.step, mark):
                return "stale", f"step {push.step} may not be computed on version {push.base}"
        for frame in push.blocks:
            block = self.blocks.get(frame.block)
            if block is None:
                return "block", f"block {frame.block} is not held here"
            if (frame.dtype, frame.numel) != (block.dtype, block.numel):
                return (
                    "block",
                    f"block {frame.block} is {block.numel} {block.dtype}, not {frame.numel} {frame.dtype}",
                )
        if push.seal is not None and any(b not in self.blocks for b, _ in push.seal.revs):
            return "block", "the seal names a block that is not held here"
        return None

    def _is_over(self, step: int) -> bool:
        """Whether `step` is committed, or will never be because the job ends before it."""
        if step == INIT_STEP:
            return self.applied >= 0
        return self.watermark.has(step) or (self.final >= 0 and step >= self.schedule.end_step)

    def _complete(self, number: int, step: StepSum, slot: int, fence: Fence, attempt: Attempt) -> list[Send]:
        """One attempt is here in full. What that means depends on whether attempts are interchangeable."""
        if not self._is_whole(number):
            step.chosen[slot] = fence
            return self._advance(number, step)
        if step.num_slots > 1:
            receipt = Receipt(self.incarnation, self.epoch, number, slot, fence)
            step.receipts[slot, fence] = receipt
            return [Send(COORDINATOR, receipt)]
        key = SumKey(number, fence)
        self._add(key, slot, fence, attempt)
        return [Send(COORDINATOR, self._ready(number, step, (fence,), key, [attempt.base]))]

    def _is_whole(self, number: int) -> bool:
        """Whether a slot of this step counts only as one whole attempt."""
        return self.whole or number == INIT_STEP or self.schedule.window(number) != 0

    def _choose(self, message: Choose) -> list[Send]:
        step = self.steps.get(message.step)
        if message.incarnation != self.incarnation or step is None or message.slot in step.chosen:
            return []
        step.chosen[message.slot] = message.fence
        for slot, fence in [k for k in step.receipts if k[0] == message.slot]:
            del step.receipts[slot, fence]
        return self._advance(message.step, step)

    def _advance(self, number: int, step: StepSum) -> list[Send]:
        """Sum in slot order as far as the chosen attempts reach; later slots are held until then."""
        key = SumKey(number, None)
        while step.summed < step.num_slots and step.summed in step.chosen:
            fence = step.chosen[step.summed]
            attempt = step.attempts.pop(step.summed)[fence]
            step.bases.append(attempt.base)
            self._add(key, step.summed, fence, attempt)
            step.summed += 1
        if step.summed == step.num_slots:
            if step.ready:
                return []
            fences = tuple(step.chosen[i] for i in range(step.num_slots))
            return [Send(COORDINATOR, self._ready(number, step, fences, key, step.bases))]
        if self.hold and step.num_slots > self.hold and step.summed - step.told >= max(1, self.hold // 4):
            step.told = step.summed
            return [self._summed(number, step)]
        return []

    def _summed(self, number: int, step: StepSum) -> Send:
        return Send(COORDINATOR, Summed(self.incarnation, self.epoch, number, step.told))

    def _add(self, key: SumKey, slot: int, fence: Fence, attempt: Attempt) -> None:
        seal = attempt.seal
        assert seal is not None
        sealed = {b: attempt.payloads[b] for b, _ in seal.revs}
        self.store.add(key, seal.weight, frozenset(seal.absent), sealed, slot=slot, fence=fence, revs=dict(seal.revs))
        attempt.payloads.clear()

    def _ready(self, number: int, step: StepSum, fences: tuple[Fence, ...], key: SumKey, bases: list[int]) -> Ready:
        init = number == INIT_STEP
        stale = 0 if init else max(staleness(number, self._marks[b]) for b in bases)
        lag = 0 if init else self.applied - min(bases)
        ready = Ready(self.incarnation, self.epoch, number, fences, stale, lag, self.store.partials(key))
        step.ready[fences] = ready
        return ready

    # ------------------------------------------------------------ commits

    def _commit(self, message: Committed, now: float) -> list[Send]:
        commit = message.commit
        if commit.incarnation != self.incarnation or commit.version <= self.applied:
            if message.save and (commit.incarnation, commit.version) == (self.incarnation, self.applied):
                self._save()
            return []
        if commit.version != self.applied + 1 or not self._assigned:
            # A gap: the beat shows it, and the coordinator repeats what is missing. Once is enough.
            told, self._gap_told = self._gap_told, self.applied
            return [self._beat(now)] if told != self.applied else []
        step = self.steps[commit.step]
        apart = commit.fences in step.ready and step.summed == 0
        key = SumKey(commit.step, commit.fences[0] if apart else None)
        if not apart:
            assert step.summed == step.num_slots, f"commit of step {commit.step} before it was ready"
        if message.keep and self.applied >= 0 and self.applied not in self._kept:
            self._keep(self.applied)
        fences = commit.fences if apart else tuple(step.chosen[i] for i in range(step.num_slots))
        self.store.apply(key, commit)
        self._extend_chains(commit, fences)
        step.ready.pop(commit.fences, None)
        self._drop(commit.step, apart=apart)
        self.applied = commit.version
        if message.save:
            self._save()
        self.watermark.add(commit.step)
        self._marks[commit.version] = self.watermark.low
        if commit.pin:
            self._keep(commit.version)
        self._prune()
        self._finish()
        return self._answer(self._parking.committed(commit.version, commit.step, self.watermark.low))

    def _save(self) -> None:
        if self.saving != self.applied:
            self.store.save(self.applied)
            self.saving, self._saved, self._frozen_chains = self.applied, None, dict(self.chains)

    def _extend_chains(self, commit: Commit, fences: tuple[Fence, ...]) -> None:
        # Blocks that came the same way have the same chain: one hash for all of them.
        after = {c: extend(c, commit.version, commit.step, fences) for c in set(self.chains.values())}
        self.chains = {block: after[chain] for block, chain in self.chains.items()}

    def _keep(self, version: int) -> None:
        self._kept.add(version)
        self.store.keep(version)

    def _drop(self, number: int, *, apart: bool) -> None:
        """Nothing more will come of a step: forget its attempts and the sums that were not applied."""
        step = self.steps.pop(number)
        for fences in step.ready:
            if apart:
                self.store.drop(SumKey(number, fences[0]))

    def _finish(self) -> None:
        """The job was stopped, and its last version is here: what is held beyond it will never be committed."""
        if not 0 <= self.final <= self.applied:
            return
        for number in list(self.steps):
            summed = self.steps[number].summed > 0
            if summed or not self._is_whole(number):
                self.store.drop(SumKey(number, None))
            self._drop(number, apart=not summed)

    def _prune(self) -> None:
        """Forget the watermarks of versions on which nothing may be computed any more."""
        window = self.schedule.window(self.watermark.low) if self.schedule.segments else 0
        if window < 0:
            while len(self._marks) > _MAX_MARKS:
                del self._marks[next(iter(self._marks))]
            return
        while self._marks:
            oldest = next(iter(self._marks))
            if oldest == self.applied or self._marks[oldest] >= self.watermark.low - window:
                return
            del self._marks[oldest]

    # ------------------------------------------------------------ pulls

    def _pull(self, sender: NodeId, pull: Pull) -> list[Send]:
        if not self._assigned or (pull.incarnation, pull.epoch) > (self.incarnation, self.epoch):
            self._parking.wait(sender, pull)  # until this server is where the reader is
            return []
        if pull.incarnation != self.incarnation:
            return self._refuse(
                sender,
                pull.req,
                "incarnation",
                f"this is incarnation {self.incarnation}, not {pull.incarnation}",
            )
        if pull.epoch != self.epoch:
            return self._refuse(sender, pull.req, "epoch", f"blocks are placed by epoch {self.epoch}, not {pull.epoch}")
        if 0 <= pull.exact < self.applied and pull.exact not in self._kept:
            return self._refuse(sender, pull.req, "gone", f"version {pull.exact} is older than {self.applied}")
        version = pull.exact
        if version < 0:
            if self.applied < 0:
                self._parking.wait(sender, pull, version=0)
                return []
            if pull.watermark > self.watermark.low:
                self._parking.wait(sender, pull, watermark=pull.watermark)
                return []
            if pull.after >= 0 and not self.watermark.has(pull.after):
                self._parking.wait(sender, pull, step=pull.after)
                return []
            version = self.applied
        elif version > self.applied:
            self._parking.wait(sender, pull, version=version)
            return []
        blocks, payload = self.store.read(version, pull.have, pull.blocks)
        bounds = cuts((self.blocks[f.block].nbytes for f in blocks), self.part_nbytes)
        mark = self._marks.get(version, 0)
        return [
            Send(
                sender,
                PullReply(pull.req, self.incarnation, version, mark, blocks[a:b], part, len(bounds) - 1),
                payload[a:b],
            )
            for part, (a, b) in enumerate(pairwise(bounds))
        ]

    def _answer(self, waiting: list[tuple[NodeId, Pull]]) -> list[Send]:
        out: list[Send] = []
        for sender, pull in waiting:
            out += self._pull(sender, pull)
        return out
