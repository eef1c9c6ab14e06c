"""Slots that wait to be leased again."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from paceline.types import SlotId


class RequeuedSlots:
    """Slots that were leased before, lowest first. `slots` is the heap of them. Only `LeaseBook` changes it."""

    def __init__(self) -> None:
        self.slots: list[SlotId] = []
        self._waiting: set[SlotId] = set()

    def __len__(self) -> int:
        """The number of slots that wait."""
        return len(self.slots)

    def __contains__(self, slot: object) -> bool:
        """Whether `slot` waits."""
        return slot in self._waiting

    @property
    def lowest(self) -> SlotId:
        """The lowest slot that waits."""
        return self.slots[0]

    @property
    def highest_step(self) -> int:
        """The highest step of a slot that waits; -1 for none."""
        return max((slot.step for slot in self.slots), default=-1)

    def push(self, slot: SlotId) -> None:
        """Add a slot that must be leased again."""
        heappush(self.slots, slot)
        self._waiting.add(slot)

    def pop(self) -> SlotId:
        """Remove and return the lowest slot."""
        slot = heappop(self.slots)
        self._waiting.discard(slot)
        return slot

    def drop(self, over: Callable[[SlotId], bool]) -> None:
        """Remove the slots for which `over` is true."""
        if not self.slots:
            return
        kept = [slot for slot in self.slots if not over(slot)]
        if len(kept) < len(self.slots):
            self.slots, self._waiting = kept, set(kept)
            heapify(self.slots)

    def clear(self) -> None:
        """Remove all slots."""
        self.slots.clear()
        self._waiting.clear()
