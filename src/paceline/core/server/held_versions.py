"""What a server holds and where it stands: its blocks, what has arrived of steps, the last version it has applied.

Placements are entered here; what arrives is decided on in `paceline.core.server.dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.config.dials import REACH_S
from paceline.core.coordinator.membership import RunningTime
from paceline.core.effects import Send
from paceline.core.message_parts import PART_NBYTES
from paceline.core.segments import Schedule
from paceline.core.server.backups import Copies
from paceline.core.server.block_groups import Group
from paceline.core.server.block_store import BlockStore, SumKey
from paceline.core.server.parked_pulls import Parking
from paceline.core.server.probes import Probing
from paceline.core.server.replication import Replicator
from paceline.core.server.step_sums import StepSum
from paceline.core.window import Watermark, admits
from paceline.errors import CheckpointError
from paceline.messages import Abort, Assign, Beat, CopyPart, NotLoaded, Push, Refused, Replicate, Saved
from paceline.types import COORDINATOR, INIT_STEP, BlockSpec, NodeId

_MAX_MARKS = 100_000  # with an unlimited window: versions so old that nobody can still be working on them


class Holding:
    """State of one server, and the questions that are asked of it.

    `own` are the blocks that it is the primary of, in `store`; `copies` those of other primaries. `saving` is the
    version that is being written to a checkpoint, None while there is none.
    """

    def __init__(
        self,
        node: NodeId,
        make: Callable[[], BlockStore],
        *,
        heartbeat_s: float = 0.5,
        part_nbytes: int = PART_NBYTES,
        reach_s: float = REACH_S,
    ) -> None:
        """`make` gives an empty store: one at once, and one for each primary that this server has copies of.

        Large messages are sent in parts of about `part_nbytes`.
        """
        self.node = node
        self.store = make()
        self.own = Group(self.store)
        self.copies = Copies(node, make)
        self.probing = Probing()
        self.replicator = Replicator(self.store, reach_s, part_nbytes)
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
        self.revision = 0
        self.failed: Abort | None = None
        self.steps: dict[int, StepSum] = {}
        self.refused: dict[str, int] = {}
        self.saving: int | None = None
        self._saved: Saved | None = None
        self._frozen_chains: dict[int, bytes] = {}
        self._not_loaded: NotLoaded | None = None
        self._assigned = False
        self._anchored = False
        self._waiting: Assign | None = None
        self._early: dict[tuple[NodeId, int], tuple[Replicate | CopyPart, Sequence[object]]] = {}
        self._addresses: Mapping[NodeId, str] = {}
        self._running = RunningTime()
        self._marks: dict[int, int] = {}
        self._kept: set[int] = set()
        self._parking = Parking()
        self._next_beat = 0.0
        self._gap_told = (0, -2)

    @property
    def blocks(self) -> Mapping[int, BlockSpec]:
        """The blocks that this server is the primary of."""
        return self.own.blocks

    @property
    def chains(self) -> Mapping[int, bytes]:
        """Their hash chains."""
        return self.own.chains

    @property
    def peers(self) -> dict[NodeId, str]:
        """The servers that this one must be able to reach now, and where they listen."""
        return {**self.probing.peers, **{to: self._addresses.get(to, "") for to in self.replicator.peers}}

    def _beat(self, now: float) -> Send:
        self._next_beat = now + self.heartbeat_s
        kept = tuple(sorted(self._kept))
        applied = self.applied if self._anchored else -2
        return Send(COORDINATOR, Beat(self.node, self.incarnation, self.epoch, applied, self.revision, kept))

    def _refuse(self, sender: NodeId, req: int, rule: str, detail: str) -> list[Send]:
        self.refused[rule] = self.refused.get(rule, 0) + 1
        return [Send(sender, Refused(req, rule, detail))]

    def _is_over(self, step: int) -> bool:
        """Whether `step` is committed, or will never be because the job ends before it."""
        if step == INIT_STEP:
            return self.applied >= 0
        return self.watermark.has(step) or (self.final >= 0 and step >= self.schedule.end_step)

    def _is_whole(self, number: int) -> bool:
        """Whether a slot of this step counts only as one whole attempt."""
        return self.whole or number == INIT_STEP or self.schedule.window(number) != 0

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
        blocks = self.own.blocks
        for frame in push.blocks:
            block = blocks.get(frame.block)
            if block is None:
                return "block", f"block {frame.block} is not held here"
            if (frame.dtype, frame.numel) != (block.dtype, block.numel):
                return (
                    "block",
                    f"block {frame.block} is {block.numel} {block.dtype}, not {frame.numel} {frame.dtype}",
                )
        if push.seal is not None and any(b not in blocks for b, _ in push.seal.revs):
            return "block", "the seal names a block that is not held here"
        return None

    def _enter(self, message: Assign) -> bool:
        """An incarnation begins for this server: what was held before is forgotten. False if it cannot be loaded."""
        self.incarnation, self.epoch = message.incarnation, message.placement.epoch
        self._assigned = False
        self._forget_all()
        self.whole, self.hold = message.whole, message.hold
        self.copies.open(message, self.own)
        groups = [g for g in (self.own, *self.copies.followers.values()) if g.blocks]
        if message.folder:
            try:
                for group in groups:
                    group.chains.update(group.store.load(message.folder, message.version))
            except CheckpointError as error:
                self._not_loaded = NotLoaded(self.incarnation, self.epoch, message.folder, str(error))
                return False
        if groups:
            self._anchored = True
            assert message.at <= message.version, "blocks of a version that this server never had"
            if message.folder:
                self._stand(message.version, Watermark(message.watermark, message.above))
        else:
            self._stand_beside(message)
        self._assigned = True
        return True

    def _move(self, message: Assign, *, keep: bool) -> None:
        """Another placement of the same incarnation: what is not committed is void, what is here stays."""
        self.epoch = message.placement.epoch
        self.saving = self._saved = self._waiting = None
        self._drop_sums()
        if keep and self.applied >= 0:
            assert self.applied == message.at, f"version {self.applied} is here, {message.at} was the last"
            oldest = self.copies.regroup(message, self.own)
            for version in [v for v in self._kept if v < oldest]:
                self._release(version)  # nobody waits for it, or there would be no copies since
            self._stand(self.applied, self.watermark)
            if self.applied in self._kept:
                self._keep(self.applied)  # blocks that came from elsewhere are not kept yet
        else:
            self.copies.open(message, self.own)
            if not keep:
                self._kept.clear()
                self._stand_beside(message)
        self._parking.restart()

    def _stand(self, version: int, watermark: Watermark) -> None:
        """This server is at `version`. Nothing will be computed on an older one."""
        self.applied, self.watermark = version, watermark
        self._marks = {version: watermark.low} if version >= 0 else {}

    def _stand_beside(self, message: Assign) -> None:
        """Nothing is held here; if something is sent, it goes on from where the job is now."""
        self._anchored = bool(self.copies.joiners)
        self._stand(message.at, Watermark(*message.begun))

    def _forget_all(self) -> None:
        self.applied = self.final = -1
        self.watermark = Watermark()
        self.schedule, self.revision = Schedule(), 0
        self.saving = self._saved = self._not_loaded = self._waiting = None
        self._anchored = False
        self._gap_told = (0, -2)
        self.steps.clear()
        self._marks.clear()
        self._kept.clear()
        self._parking.restart()

    def _keep(self, version: int) -> None:
        self._kept.add(version)
        if self.own.blocks:
            self.store.keep(version)
        self.copies.keep(version)

    def _release(self, version: int) -> None:
        self._kept.discard(version)
        self.store.release(version)
        self.copies.release(version)

    def _drop(self, number: int, *, apart: bool) -> None:
        """Nothing more will come of a step: forget its attempts and the sums that were not applied."""
        step = self.steps.pop(number)
        if apart:
            for fences in {*step.ready, *self.replicator.pending(number)}:
                self.store.drop(SumKey(number, fences[0]))
        self.replicator.forget(number)

    def _finish(self) -> None:
        """The job was stopped, and its last version is here: what is held beyond it will never be committed."""
        if 0 <= self.final <= self.applied:
            self._drop_sums()

    def _drop_sums(self) -> None:
        """What is held of steps will never be committed."""
        self.copies.drop_sums()
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
