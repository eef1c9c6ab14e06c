"""Slots that are left, for a while, to those who have computed them: so that none is computed a second time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from paceline.types import Fence, NodeId, SlotId


class Reservation(NamedTuple):
    """`worker` has the gradients of `slot`, or will have them soon; known since `at`."""

    worker: NodeId
    slot: SlotId
    at: float


class Reserved:
    """At most one slot a worker: the one that it was given last. A slot that two have tried may be left to both."""

    def __init__(self) -> None:
        self._of: dict[NodeId, Reservation] = {}
        self._slots: Counter[SlotId] = Counter()

    def __len__(self) -> int:
        """How many workers have one."""
        return len(self._of)

    def __contains__(self, slot: object) -> bool:
        """Whether `slot` is left to somebody."""
        return slot in self._slots

    def has(self, worker: NodeId) -> bool:
        """Whether a slot is left to `worker`."""
        return worker in self._of

    def all(self) -> list[Reservation]:
        """Everything that is left to somebody."""
        return list(self._of.values())

    def begin(self, step: int, held: Iterable[tuple[Fence, NodeId, SlotId]], now: float) -> None:
        """Slots of `step` that were given to somebody have become void. What nobody has fetched yet is still theirs."""
        self._of |= {worker: Reservation(worker, slot, now) for _, worker, slot in sorted(held)}
        self.end_steps(lambda other: other != step)

    def end(self, worker: NodeId) -> SlotId | None:
        """The slot that was left to `worker`, and is not any more."""
        found = self._of.pop(worker, None)
        if found is None:
            return None
        self._slots[found.slot] -= 1
        if not self._slots[found.slot]:
            del self._slots[found.slot]
        return found.slot

    def end_steps(self, over: Callable[[int], bool]) -> None:
        """Steps that are `over` will not be computed any more."""
        if self._of:
            self._of = {worker: r for worker, r in self._of.items() if not over(r.slot.step)}
            self._slots = Counter(r.slot for r in self._of.values())
