"""Leases: which worker may compute which slot. They are not durable: after a restart the workers report them."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from paceline.core.coordinator.tables.live_leases import Lease, LiveLeases
from paceline.core.coordinator.tables.lost_holders import LostHolders, Poisoned
from paceline.core.coordinator.tables.requeued_slots import RequeuedSlots
from paceline.core.coordinator.tables.reservations import Reserved
from paceline.core.coordinator.tables.summed_slots import SummedSlots
from paceline.core.schedule import Schedule
from paceline.core.window import may_lease
from paceline.types import INIT_STEP, UNLIMITED, Fence, NodeId, SlotId


class Revoked(NamedTuple):
    """The slots of a worker that is gone.

    `again` are leased again at once. `sealed` were sealed: their pushes may have arrived, so the caller gives the
    servers a moment before it calls `requeue`. `poisoned` is one of the slots if it has lost too many holders in a row,
    which fails the job (rule 4).
    """

    again: list[SlotId]
    sealed: list[SlotId]
    poisoned: Poisoned | None


class LeaseBook:
    """Leases of training slots, in slot order, within the window and `hold` (rule 4). Only `Leasing` changes it."""

    def __init__(
        self,
        schedule: Schedule,
        generation: int,
        *,
        hold: int,
        max_losses: int,
        done: Callable[[SlotId], bool] = lambda slot: False,
        in_group: Callable[[], bool] = lambda: False,
        counter: int = 0,
    ) -> None:
        """`done` says whether a slot need not be computed any more. Fences are numbered after `counter`.

        A step that is `in_group` is summed when all its slots are leased, so `hold` does not limit it.
        """
        self.schedule = schedule
        self.generation = generation
        self.hold = hold
        self.counter = counter
        self.live = LiveLeases()
        self.reserved = Reserved()
        self.requeued = RequeuedSlots()
        self._summed = SummedSlots()
        self._done = done
        self._in_group = in_group
        self._next = SlotId(INIT_STEP, 0)
        self._highest = -1  # the highest step that was leased since all leases became void
        self._lost = LostHolders(max_losses)

    def fence(self) -> Fence:
        """A new fence, larger than every earlier one."""
        self.counter += 1
        return Fence(self.generation, self.counter)

    def reset(self, schedule: Schedule, step: int, *, initialised: bool) -> None:
        """End all leases, and lease from `step` on: all steps below are committed. Fences keep counting."""
        self.schedule = schedule
        self.reserved = Reserved()
        self._lost.clear()
        self._forget(SlotId(step, 0) if initialised else SlotId(INIT_STEP, 0))

    def _forget(self, first: SlotId) -> None:
        self._next = first
        self._highest = -1
        self.live.clear()
        self.requeued.clear()
        self._summed.clear()

    def restart(self, step: int, *, initialised: bool, now: float = 0.0) -> tuple[list[Lease], int]:
        """Make every lease void: slots from `step` on that are not committed are leased again; no loss is counted.

        In lock-step the state that `step` is computed on does not change: its slots are reserved for the workers that
        had them. Returns the leases that were not sealed, and the number of those that were.
        """
        held, sealed = self.live.open_leases(), self.live.num_sealed
        theirs = [(ls.fence, ls.worker, ls.slot) for ls in self.live.all() if ls.slot.step == step]
        self.reserved.begin(step, theirs if initialised and theirs and not self.schedule.window(step) else (), now)
        self._forget(SlotId(step, 0) if initialised else SlotId(INIT_STEP, 0))
        return held, sealed

    # ------------------------------------------------------------ granting

    def grant(
        self,
        worker: NodeId,
        watermark: int,
        initialised: bool,
        end_step: int,
        now: float = 0.0,
        *,
        above: int | None = None,
    ) -> Lease | None:
        """Lease the lowest slot that `worker` may compute; None if the worker must wait.

        `watermark` is the lowest uncommitted step, `end_step` the first step that must not be leased. With `above`, the
        worker computes a slot of that step: it gets the lowest slot only if that is of a later step.
        """
        slot = None
        if above is None:
            if self.reserved.of:
                slot = self._own(worker, watermark, end_step)
        elif (self.requeued.slots[0] if self.requeued.slots else self._next).step <= above:
            return None
        if slot is None:
            slot = self._take(watermark, initialised, end_step)
        return None if slot is None else self.lease(slot, worker, now)

    def lease(self, slot: SlotId, worker: NodeId, now: float, *, own: bool = False) -> Lease:
        """Lease `slot` to `worker`, with `own` out of order: it is the worker's own slot in a group.

        A late slot may have two leases: the first attempt that arrives counts.
        """
        lease = Lease(slot, self.fence(), worker, now)
        self._highest = max(self._highest, slot.step)
        self.live.add(lease)
        while own and slot == self._next:  # the next slot to take in order is the first without a lease
            step, index = slot
            last = index + 1 >= self.schedule.num_slots(step)
            self._next = slot = SlotId(step + 1, 0) if last else SlotId(step, index + 1)
            if not self.live.is_leased(slot):
                break
        return lease

    def adopt(self, worker: NodeId, slot: SlotId, fence: Fence, now: float) -> bool:
        """Give a lease of an earlier coordinator a full new term, unless another worker has the slot (rule 7)."""
        live = self.live
        if fence.generation >= self.generation or fence in live or live.is_leased(slot) or self._done(slot):
            return False
        if slot.step != INIT_STEP:
            self._low(slot.step)
        live.add(Lease(slot, fence, worker, now))
        self.requeued.drop(lambda other: other == slot)
        return True

    def _own(self, worker: NodeId, watermark: int, end_step: int) -> SlotId | None:
        """The slot reserved for `worker`, if it may be leased now."""
        slot = self.reserved.end(worker)
        if slot is None or slot.step < watermark or self.live.is_leased(slot) or self._done(slot):
            return None
        if slot.step >= end_step or (slot.slot >= self._low(slot.step) + self.hold and not self._in_group()):
            self._requeue(slot)
            return None
        self.requeued.drop(lambda other: other == slot)
        return slot

    def release(self, worker: NodeId) -> None:
        """End the reservation of `worker`: any worker may have its slot."""
        slot = self.reserved.end(worker)
        if slot is not None and not self._done(slot):
            self._requeue(slot)

    def _take(self, watermark: int, initialised: bool, end_step: int) -> SlotId | None:
        if self.requeued.slots:
            # Slots are requeued from below `_next`: where the lowest of them may not be leased, nothing may.
            return None if self.requeued.lowest.step >= end_step else self.requeued.pop()
        schedule, reserved = self.schedule, self.reserved
        while True:
            slot = self._next
            step, index = slot
            if step == INIT_STEP:
                self._next = SlotId(0, 0)
                if not initialised and not self.live.is_leased(slot):
                    return slot
                continue
            if not initialised and step > 0:
                return None
            if step >= end_step or not may_lease(schedule.window(step), step, watermark):
                return None
            if watermark < self.schedule.barrier(step):
                return None
            # Leased under an earlier coordinator, or by a reservation.
            is_taken = self.live.is_leased(slot) or self._done(slot)
            if not is_taken and index >= self._low(step) + self.hold and not self._in_group():
                return None
            last = index + 1 == schedule.num_slots(step)
            self._next = SlotId(step + 1, 0) if last else SlotId(step, index + 1)
            if not is_taken and (not reserved.of or slot not in reserved):
                return slot

    def _low(self, step: int) -> int:
        return self._summed.low(step)

    def summed(self, server: NodeId, step: int, count: int, num_servers: int) -> bool:
        """Note that a server has summed the first `count` slots of a step; True if more slots may now be leased."""
        return self._summed.note(server, step, count, num_servers)

    def recall(self, watermark: int, initialised: bool) -> Lease | None:
        """Take back one lease whose holder can only wait, so that the holder computes a requeued slot instead.

        Leases are granted one step early, so when a slot comes back every worker may hold a lease of the next step.
        """
        return self.take_back(self.requeued.lowest.step, watermark, initialised) if self.requeued.slots else None

    def take_back(self, above: int, watermark: int, initialised: bool) -> Lease | None:
        """Take back one lease of the newest leased step, which must be above `above` and not yet computable.

        The slot is leased again later. Returns None if there is no such lease.
        """
        step = self._next.step if self._next.slot else self._next.step - 1
        if step <= above or step < 0:
            return None
        window = self.schedule.window(step)
        if initialised and (window == UNLIMITED or step <= watermark + window):
            return None
        top = self._next.slot if self._next.slot else self.schedule.num_slots(step)
        for index in range(top - 1, -1, -1):
            slot = SlotId(step, index)
            for lease in self.live.of_slot(slot):
                # A worker that has another lease in hand computes that one, so it does not wait.
                if not self.live.is_sealed(lease.fence) and len(self.live.open_of(lease.worker)) == 1:
                    self.live.remove(lease)
                    self._requeue(slot)
                    return lease
        return None

    def unleased(self, end_step: int, *, most: int | None = None) -> int:
        """How many slots of the step that is leased now, which is below `end_step`, have no lease yet.

        With `most`, of all steps before `end_step`; if there are more than `most`, some such number. An estimate: slots
        leased out of order count, reserved ones may not.
        """
        count, (step, index) = len(self.requeued.slots), self._next
        if step == INIT_STEP or step >= end_step:
            return count
        count += self.schedule.num_slots(step) - index
        return count if most is None else count + self.schedule.slots_between(step + 1, end_step, most)

    @property
    def first_free_step(self) -> int:
        """The first step above all that were leased since leases became void, wait to be leased again, or are reserved.

        A reserved slot that was leased counts, too, after its holder is gone: its gradient may be on its way.
        """
        reserved = (reservation.slot.step + 1 for reservation in self.reserved.all())
        leased = (lease.slot.step + 1 for lease in self.live.all())
        highest = max(self._highest, self.requeued.highest_step) + 1
        return max(self._next.step + (self._next.slot > 0), highest, 0, *leased, *reserved)

    # ------------------------------------------------------------ what becomes of a lease

    def seal(self, fence: Fence, worker: NodeId) -> Lease | None:
        """Note that the holder sealed the slot. The lease lives until the commit: the pushes may still be lost."""
        live = self.live
        lease = live.find(fence)
        if lease is None or lease.worker != worker:
            return None
        live.seal(fence)
        self._lost.forget(lease.slot)  # a holder survived the slot: losses are no longer in a row
        return lease

    def abandon(self, fence: Fence) -> SlotId | None:
        """End a lease that its holder gives back; the slot is leased again, and no loss is counted."""
        lease = self.live.find(fence)
        if lease is None:
            return None
        self.live.remove(lease)
        return self._requeue(lease.slot)

    def abandon_open(self, worker: NodeId, held: Container[Fence] = ()) -> bool:
        """Give back every lease that `worker` has not sealed and does not list as `held`; True if there was one.

        When a worker asks for the next lease, it does not know of a lease that it neither sealed, nor gave back, nor
        lists.
        """
        unknown = self.live.open_of(worker, held)
        for lease in unknown:
            self.abandon(lease.fence)
        return bool(unknown)

    def revoke(self, worker: NodeId, *, lost: bool = True, host: str = "") -> Revoked:
        """End all leases of `worker`, which was `lost`, with its whole `host` if that is named, or left by itself."""
        again: list[SlotId] = []
        sealed: list[SlotId] = []
        poisoned = None
        self.release(worker)
        # The worker has computed its lowest open slot. Another one is for its next turn: it has not begun that.
        in_hand = min((lease.slot for lease in self.live.open_of(worker)), default=None)
        for lease in self.live.held_by(worker):
            was_sealed = self.live.is_sealed(lease.fence)
            self.live.remove(lease)
            if was_sealed:
                sealed.append(lease.slot)
                continue
            if lost and lease.slot == in_hand:
                poisoned = self._lost.add(lease.slot, worker, host) or poisoned
            if self._requeue(lease.slot) is not None:
                again.append(lease.slot)
        return Revoked(again, sealed, poisoned)

    def requeue(self, slot: SlotId) -> None:
        """Lease a sealed slot again whose pushes did not arrive, unless its step is committed or dropped."""
        if slot.step in self._summed or slot.step == INIT_STEP:
            self._requeue(slot)

    def committed(self, step: int) -> list[Lease]:
        """End all leases of a committed step; returns those that were sealed."""
        sealed: list[Lease] = []
        live = self.live
        for index in range(self.schedule.num_slots(step)):
            slot = SlotId(step, index)
            self._lost.forget(slot)
            sealed += live.end_slot(slot)
        self._summed.forget(step)
        if self.requeued.slots:
            self.requeued.drop(lambda slot: slot.step == step)
        if self.reserved.of:
            self.reserved.end_steps(lambda other: other == step)
        return sealed

    def beyond(self, end_step: int) -> list[Lease]:
        """End and return the leases of steps from `end_step` on, which will not be computed."""
        void = [lease for lease in self.live.all() if lease.slot.step >= end_step]
        for lease in void:
            self.live.remove(lease)
        self._summed.drop_beyond(end_step)
        self.requeued.drop(lambda slot: slot.step >= end_step)
        self.reserved.end_steps(lambda step: step >= end_step)
        self._highest = min(self._highest, end_step - 1)
        if self._next.step >= end_step:
            self._next = SlotId(end_step, 0)
        return void

    def _requeue(self, slot: SlotId) -> SlotId | None:
        if self.live.is_leased(slot) or slot in self.requeued:
            return None  # another worker holds it, or it is requeued already
        if slot >= self._next:
            return slot  # it was leased out of order; its turn in slot order is still to come
        self.requeued.push(slot)
        return slot
