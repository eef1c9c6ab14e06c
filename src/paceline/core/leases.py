"""Who may compute which slot. Soft state: never persisted, rebuilt from nothing after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from paceline.core.schedule import Schedule
from paceline.core.window import may_lease
from paceline.types import INIT_STEP, Fence, NodeId, SlotId


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission for `worker` to compute `slot`, named by `fence`."""

    slot: SlotId
    fence: Fence
    worker: NodeId


@dataclass(slots=True)
class _Step:
    """Slots of one step that is not committed: which are sealed, and the lowest that is not."""

    num_slots: int
    sealed: set[int] = field(default_factory=set)
    low: int = 0

    def seal(self, index: int) -> None:
        self.sealed.add(index)
        while self.low in self.sealed:
            self.low += 1


class LeaseBook:
    """Leases of training slots, in slot order, within the window and within `hold`."""

    def __init__(self, schedule: Schedule, generation: int, *, hold: int, max_losses: int) -> None:
        self.schedule = schedule
        self.generation = generation
        self.hold = hold
        self.max_losses = max_losses
        self.granted = 0
        self._counter = 0
        self._next = SlotId(INIT_STEP, 0)
        self._requeued: list[SlotId] = []
        self._leases: dict[Fence, Lease] = {}
        self._by_worker: dict[NodeId, dict[Fence, Lease]] = {}
        self._by_slot: dict[SlotId, dict[Fence, Lease]] = {}
        self._losses: dict[SlotId, list[NodeId]] = {}
        self._steps: dict[int, _Step] = {}

    def fence(self) -> Fence:
        """A new fence, larger than every earlier one."""
        self._counter += 1
        return Fence(self.generation, self._counter)

    def start_at(self, step: int) -> None:
        """Everything below `step` is committed (after a restart)."""
        self._next = SlotId(step, 0)

    def grant(self, worker: NodeId, watermark: int, initialised: bool, end_step: int) -> Lease | None:
        """The next slot that `worker` may compute, lowest first; None when it must wait.

        `watermark` is the lowest uncommitted step, `end_step` the first step that must not be leased.
        """
        slot = self._take(watermark, initialised, end_step)
        if slot is None:
            return None
        lease = Lease(slot, self.fence(), worker)
        self._leases[lease.fence] = lease
        self._by_worker.setdefault(worker, {})[lease.fence] = lease
        self._by_slot.setdefault(slot, {})[lease.fence] = lease
        self.granted += 1
        return lease

    def _take(self, watermark: int, initialised: bool, end_step: int) -> SlotId | None:
        while self._requeued and self._requeued[0].step >= end_step:
            heappop(self._requeued)
        if self._requeued:
            return heappop(self._requeued)
        slot = self._next
        if slot.step == INIT_STEP:
            self._next = SlotId(0, 0)
            return slot if not initialised else self._take(watermark, initialised, end_step)
        if not initialised and slot.step > 0:
            return None
        if slot.step >= end_step or not may_lease(self.schedule.window(slot.step), slot.step, watermark):
            return None
        step = self._step(slot.step)
        if slot.slot >= step.low + self.hold:
            return None
        last = slot.slot + 1 == step.num_slots
        self._next = SlotId(slot.step + 1, 0) if last else SlotId(slot.step, slot.slot + 1)
        return slot

    def _step(self, number: int) -> _Step:
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = _Step(self.schedule.num_slots(number))
        return step

    def __contains__(self, fence: object) -> bool:
        """Whether a live lease has that fence."""
        return fence in self._leases

    def find(self, fence: Fence) -> Lease | None:
        """The live lease with that fence; None once it was given back, revoked or its step committed."""
        return self._leases.get(fence)

    def seal(self, fence: Fence) -> Lease | None:
        """Its holder sealed the slot. The lease lives on until the step is committed: the pushes may still be lost."""
        lease = self._leases.get(fence)
        if lease is not None and lease.slot.step != INIT_STEP:
            self._step(lease.slot.step).seal(lease.slot.slot)
        return lease

    def is_sealed(self, slot: SlotId) -> bool:
        """Whether some holder has sealed the slot."""
        step = self._steps.get(slot.step)
        return step is not None and slot.slot in step.sealed

    def abandon(self, fence: Fence) -> SlotId | None:
        """The holder gives the lease back without work; the slot is leased again, and no loss is counted."""
        lease = self._leases.get(fence)
        if lease is None:
            return None
        self._remove(lease)
        self._unseal(lease.slot)
        return self._requeue(lease.slot)

    def revoke(self, worker: NodeId) -> tuple[list[SlotId], list[SlotId]]:
        """`worker` is gone: its fences are void from now on.

        Returns the slots that are leased again at once, and those it had sealed: their pushes may have arrived, so
        the caller gives the servers a moment before it calls `requeue`.
        """
        again: list[SlotId] = []
        sealed: list[SlotId] = []
        for lease in list(self._by_worker.get(worker, {}).values()):
            self._remove(lease)
            if self.is_sealed(lease.slot):
                sealed.append(lease.slot)
            else:
                self._losses.setdefault(lease.slot, []).append(worker)
                if self._requeue(lease.slot) is not None:
                    again.append(lease.slot)
        return again, sealed

    def requeue(self, slot: SlotId) -> None:
        """The pushes of a sealed slot did not arrive: it is leased again."""
        if slot.step in self._steps and not self._by_slot.get(slot):
            self._unseal(slot)
            self._requeue(slot)

    def _unseal(self, slot: SlotId) -> None:
        step = self._steps.get(slot.step)
        if step is not None and not self._by_slot.get(slot):
            step.sealed.discard(slot.slot)
            step.low = min(step.low, slot.slot)

    def poisoned(self) -> tuple[SlotId, tuple[NodeId, ...]] | None:
        """A slot that lost `max_losses` holders in a row, with their names."""
        for slot, workers in self._losses.items():
            if len(workers) >= self.max_losses:
                return slot, tuple(workers)
        return None

    def committed(self, step: int) -> list[Lease]:
        """The step is in the log; returns leases on it whose work was not needed."""
        spare: list[Lease] = []
        for index in range(self._step(step).num_slots if step != INIT_STEP else 1):
            slot = SlotId(step, index)
            self._losses.pop(slot, None)
            for lease in list(self._by_slot.get(slot, {}).values()):
                self._remove(lease)
                spare.append(lease)
        self._steps.pop(step, None)
        if any(s.step == step for s in self._requeued):
            self._requeued = [s for s in self._requeued if s.step != step]
            heapify(self._requeued)
        return spare

    def beyond(self, end_step: int) -> list[Lease]:
        """Live leases on steps that will not be computed after all; they are void now."""
        void = [lease for lease in self._leases.values() if lease.slot.step >= end_step]
        for lease in void:
            self._remove(lease)
        for step in [s for s in self._steps if s >= end_step]:
            del self._steps[step]
        if self._next.step >= end_step:
            self._next = SlotId(end_step, 0)
        return void

    def held_by(self, worker: NodeId) -> Iterable[Lease]:
        """Live leases of a worker."""
        return self._by_worker.get(worker, {}).values()

    def _requeue(self, slot: SlotId) -> SlotId | None:
        if self._by_slot.get(slot):
            return None  # somebody else is on it
        heappush(self._requeued, slot)
        return slot

    def _remove(self, lease: Lease) -> None:
        del self._leases[lease.fence]
        for table, key in ((self._by_worker, lease.worker), (self._by_slot, lease.slot)):
            held: dict[Fence, Lease] = table[key]  # type: ignore[index]
            del held[lease.fence]
            if not held:
                del table[key]  # type: ignore[arg-type]
