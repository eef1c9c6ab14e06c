"""Slots that are reserved for the workers that have computed them, so that no slot is computed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from paceline.types import Fence, NodeId, SlotId


class Reservation(NamedTuple):
    """`worker` has the gradients of `slot`, or will have them soon; reserved since `at`."""

    worker: NodeId
    slot: SlotId
    at: float


class Reserved:
    """The reservations, `of` each worker. A worker has at most one, for the slot that it leased last.

    Two workers may share a slot.
    """

    def __init__(self) -> None:
        self.of: dict[NodeId, Reservation] = {}
        self._slots: Counter[SlotId] = Counter()

    def __len__(self) -> int:
        """The number of workers with a reservation."""
        return len(self.of)

    def __contains__(self, slot: object) -> bool:
        """Whether `slot` is reserved."""
        return slot in self._slots

    def has(self, worker: NodeId) -> bool:
        """Whether a slot is reserved for `worker`."""
        return worker in self.of

    def all(self) -> list[Reservation]:
        """All reservations."""
        return list(self.of.values())

    def begin(self, step: int, held: Iterable[tuple[Fence, NodeId, SlotId]], now: float) -> None:
        """Reserve the slots of `step` whose leases have become void; earlier reservations of the step stay."""
        self.of |= {worker: Reservation(worker, slot, now) for _, worker, slot in sorted(held)}
        self.end_steps(lambda other: other != step)

    def end(self, worker: NodeId) -> SlotId | None:
        """End the reservation of `worker`; returns its slot, None if it had none."""
        found = self.of.pop(worker, None)
        if found is None:
            return None
        self._slots[found.slot] -= 1
        if not self._slots[found.slot]:
            del self._slots[found.slot]
        return found.slot

    def end_steps(self, over: Callable[[int], bool]) -> None:
        """End the reservations of the steps for which `over` is true."""
        if self.of:
            self.of = {worker: r for worker, r in self.of.items() if not over(r.slot.step)}
            self._slots = Counter(r.slot for r in self.of.values())
