"""Slots that are left, for a while, to those who have computed them: so that none is computed a second time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from paceline.types import Fence, NodeId, SlotId


class Reservation(NamedTuple):
    """`worker` has the gradients of `slot`, or will have them soon; known since `at`."""

    worker: NodeId
    slot: SlotId
    at: float


class Reserved:
    """At most one slot a worker: the one that it was given last."""

    def __init__(self) -> None:
        self._of: dict[NodeId, Reservation] = {}

    def __len__(self) -> int:
        """Slots that are left to somebody."""
        return len(self._of)

    def __contains__(self, slot: object) -> bool:
        """Whether `slot` is left to somebody."""
        return any(r.slot == slot for r in self._of.values())

    def has(self, worker: NodeId) -> bool:
        """Whether a slot is left to `worker`."""
        return worker in self._of

    def begin(self, step: int, held: Iterable[tuple[Fence, NodeId, SlotId]], now: float) -> None:
        """Slots of `step` that were given to somebody have become void. What nobody has fetched yet is still theirs."""
        self._of = {worker: r for worker, r in self._of.items() if r.slot.step == step}
        self._of |= {worker: Reservation(worker, slot, now) for _, worker, slot in sorted(held)}

    def all(self) -> list[Reservation]:
        """Everything that is left to somebody."""
        return list(self._of.values())

    def end(self, worker: NodeId) -> SlotId | None:
        """The slot that was left to `worker`, and is not any more."""
        found = self._of.pop(worker, None)
        return None if found is None else found.slot

    def end_from(self, step: int) -> None:
        """Steps from `step` on will not be computed after all."""
        self._of = {worker: r for worker, r in self._of.items() if r.slot.step < step}
