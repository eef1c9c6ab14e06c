"""The live leases of training slots, by fence, worker and slot, and which of them are sealed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from paceline.types import INIT_STEP, Fence, NodeId, SlotId


class Lease(NamedTuple):
    """Permission for `worker` to compute `slot`, identified by `fence` and granted at time `at`."""

    slot: SlotId
    fence: Fence
    worker: NodeId
    at: float = 0.0


class LiveLeases:
    """A lease lives until it is given back or revoked, or its step is committed. Only `LeaseBook` changes it."""

    def __init__(self) -> None:
        self._leases: dict[Fence, Lease] = {}
        self._sealed: set[Fence] = set()
        self._by_worker: dict[NodeId, dict[Fence, Lease]] = {}
        self._by_slot: dict[SlotId, tuple[Lease, ...]] = {}

    def __len__(self) -> int:
        """The number of live leases."""
        return len(self._leases)

    def __contains__(self, fence: object) -> bool:
        """Whether a live lease has that fence."""
        return fence in self._leases

    def add(self, lease: Lease) -> None:
        """Add a lease."""
        slot, fence, worker, _ = lease
        self._leases[fence] = lease
        held = self._by_worker.get(worker)
        if held is None:
            self._by_worker[worker] = {fence: lease}
        else:
            held[fence] = lease
        others = self._by_slot.get(slot)
        self._by_slot[slot] = (lease,) if others is None else (*others, lease)

    def seal(self, fence: Fence) -> None:
        """Note that the holder sealed the slot. The lease stays live, because the pushes may still be lost."""
        self._sealed.add(fence)

    def remove(self, lease: Lease) -> None:
        """End a lease."""
        self._end(lease)
        others = self._by_slot.pop(lease.slot)
        if len(others) > 1:
            self._by_slot[lease.slot] = tuple(other for other in others if other.fence != lease.fence)

    def _end(self, lease: Lease) -> bool:
        """End a lease, which is still listed by its slot; True if it was sealed."""
        _, fence, worker, _ = lease
        del self._leases[fence]
        held = self._by_worker[worker]
        if len(held) > 1:
            del held[fence]
        else:
            del self._by_worker[worker]
        if fence in self._sealed:
            self._sealed.discard(fence)
            return True
        return False

    def clear(self) -> None:
        """End all leases."""
        self._leases.clear()
        self._sealed.clear()
        self._by_worker.clear()
        self._by_slot.clear()

    def find(self, fence: Fence) -> Lease | None:
        """The live lease with that fence; None if there is none."""
        return self._leases.get(fence)

    def all(self) -> list[Lease]:
        """All live leases, in the order of granting."""
        return list(self._leases.values())

    @property
    def num_sealed(self) -> int:
        """How many live leases are sealed."""
        return len(self._sealed)

    def is_sealed(self, fence: Fence) -> bool:
        """Whether the holder of a live lease has sealed its slot."""
        return fence in self._sealed

    def are_sealed(self, step: int, num_slots: int) -> bool:
        """Whether each of the `num_slots` slots of `step` has a live lease that is sealed."""
        leases = (self.of_slot(SlotId(step, index)) for index in range(num_slots))
        return all(any(lease.fence in self._sealed for lease in of_slot) for of_slot in leases)

    def is_open(self, fence: Fence) -> bool:
        """Whether a live lease has that fence and is not sealed."""
        return fence in self._leases and fence not in self._sealed

    def step_in_hand(self, fences: Iterable[Fence]) -> int | None:
        """The highest step of these leases; None if one of them has ended or is sealed."""
        step = INIT_STEP
        for fence in fences:
            lease = self._leases.get(fence)
            if lease is None or fence in self._sealed:
                return None
            if lease.slot.step > step:
                step = lease.slot.step
        return step

    def end_slot(self, slot: SlotId) -> list[Lease]:
        """End all leases of a slot; returns those that were sealed."""
        return [lease for lease in self._by_slot.pop(slot, ()) if self._end(lease)]

    def open_leases(self) -> list[Lease]:
        """Live leases that are not sealed."""
        return [lease for lease in self._leases.values() if lease.fence not in self._sealed]

    @property
    def num_open(self) -> int:
        """How many live leases are not sealed."""
        return len(self._leases) - len(self._sealed)

    def newest_open(self) -> Iterator[Lease]:
        """Live leases that are not sealed, the newest first: a caller that stops early does not look at all leases."""
        return (lease for lease in reversed(self._leases.values()) if lease.fence not in self._sealed)

    def oldest_open(self, step: int) -> Lease | None:
        """The earliest granted lease of `step` that is not sealed; None if there is none."""
        waiting = [ls for ls in self._leases.values() if ls.slot.step == step and ls.fence not in self._sealed]
        return min(waiting, key=lambda lease: lease.at, default=None)

    def held_by(self, worker: NodeId) -> list[Lease]:
        """Live leases of a worker."""
        held = self._by_worker.get(worker)
        return [] if held is None else list(held.values())

    def open_of(self, worker: NodeId, but: Container[Fence] = ()) -> list[Lease]:
        """Live leases of a worker that are not sealed, `but` those with one of these fences."""
        of_worker, sealed = self._by_worker.get(worker), self._sealed
        if of_worker is None:
            return []
        return [lease for fence, lease in of_worker.items() if fence not in sealed and fence not in but]

    def of_slot(self, slot: SlotId) -> tuple[Lease, ...]:
        """Live leases of a slot."""
        return self._by_slot.get(slot, ())

    def is_leased(self, slot: SlotId) -> bool:
        """Whether a slot has a live lease."""
        return slot in self._by_slot

    def attempts(self, slot: SlotId) -> int:
        """How many live leases a slot has."""
        return len(self._by_slot.get(slot, ()))
