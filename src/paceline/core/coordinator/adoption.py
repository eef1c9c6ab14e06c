"""Adoption: take over the leases that an earlier coordinator granted, each with a full new term. Rule 7."""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import LeaseHeld, Output, SlotSealed, WorkerJoined
from paceline.core.coordinator.segments import Segments
from paceline.core.effects import History
from paceline.messages import Position
from paceline.types import INIT_STEP, SlotId


class Adoption:
    """Takes over the leases that workers report when they register."""

    def __init__(self, tables: Tables, segments: Segments) -> None:
        self._clock = tables.clock
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._phases = tables.phases
        self._placed = tables.placed
        self._segments = segments

    def restore(self, history: History) -> list[Output]:
        """Do nothing: workers report their leases when they register."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: a report that names an earlier incarnation is ignored."""
        return []

    def worker_joined(self, event: WorkerJoined) -> list[Output]:
        """Return an event for each lease that the worker reports, unless they are of another incarnation."""
        if event.message.incarnation != self._incarnation.number:
            return []
        return [LeaseHeld(event.node, held, event.again) for held in event.message.leases]

    def adopt(self, event: LeaseHeld) -> list[Output]:
        """Take over a lease of an earlier coordinator, unless it is void or its slot is done.

        An unsealed lease counts only in the first report of a worker: later the worker may have asked for another slot.
        """
        held, placement = event.held, self._placed.placement
        if event.again and held.sealed is None:
            return []
        if placement is not None and held.epoch not in (0, placement.epoch):
            return []  # the lease is void since a change of placement
        slot = SlotId(held.step, held.slot)
        if self._is_slot(slot) and held.revision != self._phases.schedule.revision_of(held.step):
            return []  # the lease is void since a change of the plan (rule 19)
        if not self._is_slot(slot) or not self._leases.adopt(event.worker, slot, held.fence, self._clock.now):
            return []
        if held.sealed is None:
            return []
        self._leases.seal(held.fence, event.worker)
        return [SlotSealed(held.sealed, event.worker)]

    def _is_slot(self, slot: SlotId) -> bool:
        if slot.step == INIT_STEP:
            return self._log.version < 0 and slot.slot == 0
        return self._segments.is_open(slot.step) and 0 <= slot.slot < self._phases.schedule.num_slots(slot.step)
