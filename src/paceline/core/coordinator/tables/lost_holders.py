"""A slot that loses several holders in a row fails the job: its samples probably end the process. Rule 4."""

from __future__ import annotations

from paceline.core.schedule import Schedule
from paceline.errors import SlotPoisonedError
from paceline.types import INIT_STEP, NodeId, SlotId


class LostHolders:
    """For each slot, the workers that were lost in a row while they held its lease. Only `LeaseBook` changes it."""

    def __init__(self, max_losses: int) -> None:
        self._max_losses = max_losses
        self._holders: dict[SlotId, list[NodeId]] = {}

    def add(self, slot: SlotId, worker: NodeId, schedule: Schedule) -> SlotPoisonedError | None:
        """Count the loss of `worker`, which held `slot`.

        Returns the error that fails the job if `slot` has lost `max_losses` holders in a row.
        """
        holders = self._holders.setdefault(slot, [])
        holders.append(worker)
        if len(holders) < self._max_losses:
            return None
        return SlotPoisonedError(slot.step, slot.slot, tuple(holders), _samples(slot, schedule))

    def forget(self, slot: SlotId) -> None:
        """Count the losses of `slot` from zero again: a holder has sealed it, or its step is committed."""
        self._holders.pop(slot, None)

    def clear(self) -> None:
        """Count the losses of every slot from zero again."""
        self._holders.clear()


def _samples(slot: SlotId, schedule: Schedule) -> str:
    """The samples of `slot`, in words."""
    if slot.step == INIT_STEP:
        return "the initial weights"
    segment, at = schedule.segment(slot.step), schedule.place(slot.step)
    start = at.offset + slot.slot * segment.batch_size
    stop = min(start + segment.batch_size, at.offset + at.samples)
    return f"positions {start}..{stop - 1} of epoch {at.epoch}"
