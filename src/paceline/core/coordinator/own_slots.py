"""One slot a rank: in a group whose steps have as many slots as members, member r computes slot r. Rule 17.

So a fixed membership adds the same slots in the same order, and repeats its digest. A worker that is absent does not
hold up the others: they compute its slot.
"""

from __future__ import annotations

from collections.abc import Container

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.mates import mate
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.core.window import may_lease
from paceline.types import INIT_STEP, Fence, NodeId, Placement, SlotId

_NEVER_ASKED_S = 30.0  # seconds: a worker that has not asked at all for this long after it joined is absent
_ABSENT_S = 5.0  # seconds: a worker without a lease that has not asked for this long is outside of its loop
_TYPICAL = 4.0  # and for this many times the usual time of a slot


class OwnSlots:
    """Leases slots by rank. A part of `Leasing`."""

    def __init__(self, tables: Tables) -> None:
        self._clock = tables.clock
        self._leases = tables.leases
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._placed = tables.placed
        self._speeds = tables.speeds
        self._asked: dict[NodeId, float] = {}

    def is_in_group(self, worker: NodeId) -> bool:
        """Whether the member of `worker` is in the group; True if there is no group."""
        placement = self._placed.placement
        return placement is None or not placement.group or mate(self._members, worker) in placement.group

    def offer(
        self, worker: NodeId, held: Container[Fence], end_step: int, above: int | None
    ) -> tuple[bool, Lease | None]:
        """The lease of `worker`, which lists leases as `held`; with (False, None), any slot may be leased to it.

        A lease that it does not list is granted again: its grant was lost or came too late, and its step may be closed.
        Otherwise it gets its own slot of the next step before `end_step`, and with `above` only of a later step.
        """
        self._asked[worker] = self._clock.now
        if not self._placed.grouped:
            return False, None
        unknown = (lease for lease in self._leases.live.open_of(worker) if lease.fence not in held)
        again = min(unknown, key=lambda lease: lease.slot, default=None)
        if again is not None:
            return True, again
        return (True, self._grant(worker, end_step, above)) if self._rules(end_step, above) else (False, None)

    def _grant(self, worker: NodeId, end_step: int, above: int | None) -> Lease | None:
        """Lease the slot of `worker` in the next step, or that of an absent worker; None if there is none now."""
        placement, low = self._placed.placement, self._log.watermark.low
        assert placement is not None
        for step in (low, low + 1):
            if not self._is_next(step, end_step, above):
                continue
            if not self._is_ranked(placement, step):
                continue  # all its slots are leased: see `_rules`
            ranks = [placement.group.index(mate(self._members, worker))]
            ranks += [rank for rank, node in enumerate(placement.group) if self._is_absent(mate(self._members, node))]
            for rank in ranks:
                slot = SlotId(step, rank)
                if not self._leases.live.is_leased(slot):
                    return self._lease(slot, worker)
        return None

    def _lease(self, slot: SlotId, worker: NodeId) -> Lease:
        self._leases.reserved.end(worker)
        if self._leases.requeued:
            self._leases.requeued.drop(lambda other: other == slot)
        return self._leases.lease(slot, worker, self._clock.now, own=True)

    def recall(self) -> Lease | None:
        """Take back a lease of a later step whose holder must compute a slot of the lowest one first.

        That is the own slot of the holder, if its lease was given back, or the slot of an absent worker.
        """
        placement, low, live = self._placed.placement, self._log.watermark.low, self._leases.live
        phase = self._phases.open
        if phase is None or not self._rules(phase.end, None):
            return None
        assert placement is not None
        if not self._is_ranked(placement, low):
            return None
        later = {}
        for lease in live.open_leases():
            if len(live.open_of(lease.worker)) == 1 and lease.slot.step > low:
                later[lease.worker] = lease
        for rank, node in enumerate(placement.group):
            if live.is_leased(SlotId(low, rank)):
                continue
            owner = mate(self._members, node)
            found = later.get(owner)
            if found is None and self._is_absent(owner):
                found = next(iter(later.values()), None)
            if found is not None:
                self._leases.abandon(found.fence)
                return found
        return None

    def _rules(self, end_step: int, above: int | None) -> bool:
        """Whether the next slot that may be leased is of a step with one slot a rank.

        A step with another number of slots comes first while one of them is free; but no worker may take a slot of the
        step behind it that is another worker's own.
        """
        placement, low = self._placed.placement, self._log.watermark.low
        if placement is None or not placement.group:
            return False
        if self._log.version < 0 and not self._leases.live.is_leased(SlotId(INIT_STEP, 0)):
            return False  # the initial weights come first
        if above is not None and not self._is_ranked(placement, above) and not self._is_leased(above):
            return False  # a slot of that step is free: it comes first
        for step in (low, low + 1):
            if self._is_next(step, end_step, above):
                if self._is_ranked(placement, step):
                    return True
                if not self._is_leased(step):
                    return False
        return False

    def _is_next(self, step: int, end_step: int, above: int | None) -> bool:
        if step >= end_step or (above is not None and step <= above) or (step > 0 and self._log.version < 0):
            return False
        schedule, low = self._phases.schedule, self._log.watermark.low
        return schedule.barrier(step) <= low and may_lease(schedule.window(step), step, low)

    def _is_leased(self, step: int) -> bool:
        """Whether every slot of `step` has a lease."""
        live = self._leases.live
        return all(live.is_leased(SlotId(step, slot)) for slot in range(self._phases.schedule.num_slots(step)))

    def _is_ranked(self, placement: Placement, step: int) -> bool:
        return self._phases.schedule.num_slots(step) == len(placement.group)

    def _is_absent(self, worker: NodeId) -> bool:
        if not worker:
            return True
        if self._leases.live.open_of(worker):
            return False
        now, asked = self._clock.now, self._asked.get(worker)
        if asked is None:
            return now - self._members.members[worker].joined > _NEVER_ASKED_S
        return now - asked > max(_ABSENT_S, _TYPICAL * (self._speeds.typical or 0.0))
