"""A parameter server's protocol: which attempts count, when a block is ready, in which order commits apply.

Events in (`handle`, `tick`), sends out; arithmetic is behind `BlockStore`. Rules 1 to 4, 6, 7 and 11 of the design.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from paceline.core.effects import Send
from paceline.core.message_parts import LEAST_NBYTES, cuts, part_nbytes
from paceline.core.segments import Schedule
from paceline.core.server.block_groups import shares
from paceline.core.server.block_store import SumKey
from paceline.core.server.held_versions import Holding
from paceline.core.server.replication import lanes
from paceline.core.server.step_sums import Attempt, StepSum
from paceline.core.window import staleness
from paceline.messages import (
    Abort,
    Assign,
    BeatAck,
    Chained,
    Choose,
    Committed,
    CopyOver,
    CopyPart,
    CopyPartAck,
    Hail,
    Hailed,
    Message,
    Plan,
    Pull,
    PullReply,
    Push,
    PushAck,
    Ready,
    Receipt,
    Register,
    Replicate,
    Replicated,
    Saved,
    SaveOver,
    Summed,
    Try,
    Unpin,
    Welcome,
)
from paceline.types import COORDINATOR, INIT_STEP, Commit, Fence, NodeId, SavedFile

_MAX_EARLY = 256  # requests of primaries that have entered a placement before this server has


class ServerCore(Holding):
    """One server. Mutated only through `handle`, `tick`, `saved`, `greet` and `forget`."""

    # ------------------------------------------------------------ events

    def handle(self, sender: NodeId, message: Message, payload: Sequence[object], now: float) -> list[Send]:
        """One message. Whatever is wrong with it is refused by name; nothing raises."""
        match message:
            case Push():
                return self._push(sender, message, payload, now)
            case Pull():
                return self._pull(sender, message)
            case Replicate() | CopyPart():
                return self._copy(sender, message, payload)
            case Replicated() | CopyPartAck():
                return self._copied(sender, message, now)
            case Hail():
                return [Send(sender, Hailed())]
            case Hailed():
                return self.probing.answered(sender)
            case BeatAck(generation=generation) | Welcome(generation=generation):
                self.generation = max(self.generation, generation)
                return []
            case Committed() | Choose() | Assign() | Plan() | Unpin() | SaveOver() | CopyOver() | Try() | Abort():
                if message.generation < self.generation:
                    self.refused["generation"] = self.refused.get("generation", 0) + 1
                    return []
                self.generation = message.generation
                return self._ordered(message, now)
            case _:
                return []

    def tick(self, now: float) -> list[Send]:
        """Heartbeat; whatever the coordinator, or a copy, has not answered yet is said again with it."""
        ran = self._running.advance(now)
        if now < self._next_beat:
            return []
        self.probing.tick(now)
        out = [self._beat(now), *self.copies.tell(self.incarnation, self.epoch)]
        if self.replicator.lanes:
            out += self.replicator.repeat(ran)
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
            applied=self.applied if self._anchored else -2,
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

    def greet(self, peer: NodeId, now: float) -> list[Send]:
        """The session with another server came up (again): say at once what it has not answered."""
        return self.probing.greet(peer) + self.replicator.greet(peer, self._running.advance(now))

    def _ordered(
        self, message: Committed | Choose | Assign | Plan | Unpin | SaveOver | CopyOver | Try | Abort, now: float
    ) -> list[Send]:
        match message:
            case Committed():
                return self._commit(message, now)
            case Choose():
                return self._choose(message, now)
            case Assign():
                return self._assign(message, now)
            case Plan(segments=segments, final=final, incarnation=incarnation, revision=revision):
                if incarnation == self.incarnation and revision >= self.revision:
                    if revision > self.revision:
                        self.schedule, self.revision = Schedule(segments), revision
                    self.final = max(self.final, final)
                    self._finish()
            case Unpin(incarnation=incarnation, version=version):
                if incarnation == self.incarnation:
                    self._release(version)
            case CopyOver(incarnation=incarnation, epoch=epoch, source=source):
                if (incarnation, epoch) == (self.incarnation, self.epoch):
                    self.copies.noted(source)
            case SaveOver(incarnation=incarnation, version=version):
                if incarnation == self.incarnation and version == self.saving:
                    self.saving = self._saved = None
            case Try():
                return self.probing.begin(message, now)
            case Abort():
                self.failed = message
        return []

    def _assign(self, message: Assign, now: float) -> list[Send]:
        """Enter an incarnation, or another placement of it: the only way."""
        there, ran = (message.incarnation, message.placement.epoch), self._running.advance(now)
        if there <= (self.incarnation, self.epoch):
            return []
        if message.incarnation == self.incarnation and self._assigned:
            held, _ = shares(message.placement, self.node)
            if held and self.applied < message.at:
                told, self._waiting = self._waiting, message  # what was committed before is applied first
                return [] if told is not None and told.placement == message.placement else [self._beat(now)]
            self.replicator.void(ran)
            self._move(message, keep=bool(held))
        else:
            self.replicator.void(ran)
            if not self._enter(message):
                assert self._not_loaded is not None
                return [Send(COORDINATOR, self._not_loaded)]
        self._addresses = message.placement.addresses
        self.replicator.restart(lanes(message.placement, self.node), *there, self.own.blocks)
        out = [self._beat(now), *self._answer(self._parking.early())]
        out += self.replicator.begin(self.applied, self.own.chains, ran)
        early, self._early = self._early, {}
        for (sender, _), (request, payload) in early.items():
            out += self._copy(sender, request, payload)
        return out

    def _copy(self, sender: NodeId, message: Replicate | CopyPart, payload: Sequence[object]) -> list[Send]:
        """A primary sends what this server has, or is to have, a copy of."""
        there, here = (message.incarnation, message.epoch), (self.incarnation, self.epoch)
        if there > here or not self._assigned:
            if len(self._early) < _MAX_EARLY:
                self._early[sender, message.req] = message, payload
            return []
        if there < here:
            return self._refuse(sender, message.req, "epoch", f"blocks are placed by epoch {self.epoch}")
        if isinstance(message, Replicate):
            out = self.copies.replicate(sender, message, payload, over=self._is_over(message.step))
        else:
            out = self.copies.part(sender, message, payload)
        return out + self.copies.drain(self._kept, self.incarnation, self.epoch)

    def _copied(self, sender: NodeId, message: Replicated | CopyPartAck, now: float) -> list[Send]:
        """A copy has what it was sent; when all have, the step is ready here."""
        out, ready = self.replicator.answered(sender, message, self._running.advance(now))
        step = None if ready is None else self.steps.get(ready.step)
        if ready is not None and step is not None:
            step.ready[ready.fences] = ready
            out.insert(0, Send(COORDINATOR, ready))
        return out

    # ------------------------------------------------------------ pushes

    def _push(self, sender: NodeId, push: Push, payload: Sequence[object], now: float) -> list[Send]:
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
            out += self._complete(push.step, step, push.slot, push.fence, attempt, now)
        return [*out, Send(sender, PushAck(push.req, "held"))]

    def _complete(
        self, number: int, step: StepSum, slot: int, fence: Fence, attempt: Attempt, now: float
    ) -> list[Send]:
        """One attempt is here in full. What that means depends on whether attempts are interchangeable."""
        if not self._is_whole(number):
            step.chosen[slot] = fence
            return self._advance(number, step, now)
        if step.num_slots > 1:
            receipt = Receipt(self.incarnation, self.epoch, number, slot, fence)
            step.receipts[slot, fence] = receipt
            return [Send(COORDINATOR, receipt)]
        key = SumKey(number, fence)
        self._add(key, slot, fence, attempt)
        return self._ready(number, step, (fence,), key, [attempt.base], now)

    def _choose(self, message: Choose, now: float) -> list[Send]:
        step = self.steps.get(message.step)
        current = (message.incarnation, message.epoch) == (self.incarnation, self.epoch)
        if not current or step is None or message.slot in step.chosen:
            return []
        step.chosen[message.slot] = message.fence
        for slot, fence in [k for k in step.receipts if k[0] == message.slot]:
            del step.receipts[slot, fence]
        return self._advance(message.step, step, now)

    def _advance(self, number: int, step: StepSum, now: float) -> list[Send]:
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
            return self._ready(number, step, fences, key, step.bases, now)
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

    def _ready(
        self, number: int, step: StepSum, fences: tuple[Fence, ...], key: SumKey, bases: list[int], now: float
    ) -> list[Send]:
        """The sum is complete: it is ready once every copy of these blocks has it."""
        init = number == INIT_STEP
        stale = 0 if init else max(staleness(number, self._marks[b]) for b in bases)
        lag = 0 if init else self.applied - min(bases)
        ready = Ready(self.incarnation, self.epoch, number, fences, stale, lag, self.store.partials(key))
        if self.replicator.lanes:
            return self.replicator.send(key, ready, self._running.advance(now))
        step.ready[fences] = ready
        return [Send(COORDINATOR, ready)]

    # ------------------------------------------------------------ commits

    def _commit(self, message: Committed, now: float) -> list[Send]:
        commit = message.commit
        if commit.incarnation != self.incarnation or commit.version <= self.applied:
            if message.save and (commit.incarnation, commit.version) == (self.incarnation, self.applied):
                self._save()
                return self._chained()
            return []
        if self._assigned and not self._anchored:
            return []  # nothing is held here
        awaited = self._waiting is not None and commit.version <= self._waiting.at
        if commit.version != self.applied + 1 or not self._assigned or (message.epoch != self.epoch and not awaited):
            # A gap: the beat shows it, and the coordinator repeats what is missing. Once is enough.
            told, self._gap_told = self._gap_told, (self.epoch, self.applied)
            return [self._beat(now)] if told != self._gap_told else []
        if message.keep and self.applied >= 0 and self.applied not in self._kept:
            self._keep(self.applied)
        if self.own.blocks:
            self._apply(commit)
        if self.copies:
            self.copies.apply(commit)
        self.applied = commit.version
        if message.save:
            self._save()
        self.watermark.add(commit.step)
        self._marks[commit.version] = self.watermark.low
        if commit.pin:
            self._keep(commit.version)
        self._prune()
        self._finish()
        out = self._answer(self._parking.committed(commit.version, commit.step, self.watermark.low))
        if self.copies.joiners:
            out += self.copies.drain(self._kept, self.incarnation, self.epoch)
        if message.save:
            out += self._chained()
        if self._waiting is not None and self.applied >= self._waiting.at:
            out += self._assign(self._waiting, now)
        return out

    def _chained(self) -> list[Send]:
        """The hash chains of the copies here, to be compared with those of their primaries."""
        chains = tuple(sorted(self.copies.chains.items()))
        return [Send(COORDINATOR, Chained(self.incarnation, self.epoch, self.applied, chains))] if chains else []

    def _apply(self, commit: Commit) -> None:
        """Turn the sum that the log names into the next version of this server's own blocks."""
        step = self.steps[commit.step]
        apart = commit.fences in step.ready and step.summed == 0
        key = SumKey(commit.step, commit.fences[0] if apart else None)
        if not apart:
            assert step.summed == step.num_slots, f"commit of step {commit.step} before it was ready"
        fences = commit.fences if apart else tuple(step.chosen[i] for i in range(step.num_slots))
        self.store.apply(key, commit)
        self.own.extend(commit, fences)
        step.ready.pop(commit.fences, None)
        self.replicator.applied(commit.step, fences)
        self._drop(commit.step, apart=apart)

    def _save(self) -> None:
        if self.saving != self.applied and self.own.blocks:
            self.store.save(self.applied)
            self.saving, self._saved, self._frozen_chains = self.applied, None, dict(self.chains)

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
        if pull.blocks is not None and not self.own.blocks.keys() >= set(pull.blocks):
            return self._refuse(sender, pull.req, "block", "the pull names a block that is not held here")
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
        sizes = [max(LEAST_NBYTES, self.own.blocks[f.block].nbytes) for f in blocks]
        bounds = cuts(sizes, part_nbytes(sum(sizes), self.part_nbytes))
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
