"""Late slots are leased a second time, and slow workers do not get the last slots of a step. Promise 4."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.types import Fence, NodeId

_UNKNOWN_S = 60.0  # seconds: a reservation is late after this while no worker's speed is known


class Speculation:
    """Finds late leases, and workers that are too slow to get another slot. A part of `Leasing`."""

    def __init__(self, tables: Tables) -> None:
        self._clock = tables.clock
        self._log = tables.log
        self._phases = tables.phases
        self._members = tables.members
        self._leases = tables.leases
        self._speeds = tables.speeds
        self._late: dict[Fence, Lease] = {}
        self._readable_since = (-1, 0.0)

    @property
    def has_late(self) -> bool:
        """Whether some late slot waits for a second worker."""
        return bool(self._late)

    def is_late(self, fence: Fence) -> bool:
        """Whether the slot of the lease with that fence waits for a second worker."""
        return fence in self._late

    def mark(self, late: Lease) -> None:
        """Let the slot of a late lease be leased to a second worker."""
        self._late[late.fence] = late

    def find_late(self) -> list[Lease]:
        """Leases of the lowest uncommitted step that are late, in slot order."""
        step, now = self._log.watermark.low, self._clock.now
        return [
            lease
            for lease in sorted(self._leases.live.open_leases(), key=lambda lease: lease.slot)
            if lease.slot.step == step and self._speeds.is_late(lease.worker, now - self.readable_since(lease))
        ]

    def is_new(self, late: Lease) -> bool:
        """Whether a late slot has one holder, and does not wait for a second one yet."""
        return self._leases.live.attempts(late.slot) <= 1 and late.fence not in self._late

    def late_reservations(self) -> list[NodeId]:
        """Workers that have not asked for their reserved slot in time."""
        now = self._clock.now
        return [r.worker for r in self._leases.reserved.all() if self._is_late(r.worker, now - r.at)]

    def _is_late(self, worker: NodeId, elapsed_s: float) -> bool:
        if self._speeds.typical is None:
            return elapsed_s > _UNKNOWN_S
        return self._speeds.is_late(worker, elapsed_s)

    def take(self, node: NodeId) -> Lease | None:
        """Take a late lease of another worker, whose slot `node` then computes too; None if there is none."""
        for fence, late in list(self._late.items()):
            if self._leases.live.is_open(fence) and self._leases.live.attempts(late.slot) == 1:
                if late.worker != node:
                    del self._late[fence]
                    return late
            else:
                del self._late[fence]
        return None

    def readable_since(self, lease: Lease) -> float:
        """The time from which `lease` could be computed: the state that it reads may be committed after the grant."""
        return max(lease.at, self._readable())

    def _readable(self) -> float:
        """The time from which the newest version could be read: the first time that anyone asked after its commit."""
        version, at = self._readable_since
        if version != self._log.version:
            at = self._clock.now
            self._readable_since = (self._log.version, at)
        return at

    def holds_back(self, node: NodeId, end_step: int, waiting: Collection[NodeId]) -> bool:
        """Whether `node` is so slow that the other workers finish all unleased slots before `node` would finish one."""
        leases, now = self._leases, self._clock.now
        if not self._speeds.is_slow(node, now) or leases.requeued or leases.reserved.has(node):
            return False
        in_step = self._phases.schedule.window(self._log.watermark.low) == 0
        slots = leases.unleased(end_step, in_step=in_step)
        if not 0 < slots <= 4 * len(self._members.members):
            return False
        number = leases.live.num_open
        if number:
            self._readable()  # also if the answer needs no lease: the time of this question counts
        number += len(waiting)
        return self._speeds.others_are_sooner(node, slots, self._others(node, waiting), number)

    def _others(self, node: NodeId, waiting: Collection[NodeId]) -> Iterator[tuple[NodeId, float]]:
        """Each worker but `node` that has a lease or waits, and the seconds for which it could compute its lease."""
        now, live = self._clock.now, self._leases.live
        seen = {node}
        for lease in live.newest_open():
            if lease.worker not in seen:
                seen.add(lease.worker)
                yield lease.worker, now - self.readable_since(lease)
        for other in waiting:
            if other not in seen:
                yield other, 0.0
