"""Late slots are leased a second time, and slow workers do not get the last slots of a step. Promise 4."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf
from typing import NamedTuple

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.messages import Turn
from paceline.types import Fence, NodeId

_UNKNOWN_S = 60.0  # seconds: a reservation is late after this while no worker's speed is known
_MARGIN_S = 1e-3  # seconds: so long before a measurement is too old, each worker is asked for itself


class _Idle(NamedTuple):
    """Bounds on all workers that wait: none is faster than `mean`, and all measurements count before `until`.

    All of them wait for slots of `phase`; -1 if not.
    """

    mean: float
    until: float
    phase: int


class Speculation:
    """Finds late leases, and workers that are too slow to get another slot. A part of `Leasing`."""

    def __init__(self, tables: Tables) -> None:
        self._clock = tables.clock
        self._log = tables.log
        self._phases = tables.phases
        self._members = tables.members
        self._placed = tables.placed
        self._leases = tables.leases
        self._speeds = tables.speeds
        self._late: dict[Fence, Lease] = {}
        self._readable_since = (-1, 0.0)
        self._idle = _Idle(inf, inf, -1)

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
        """Leases of the lowest uncommitted step that are late, in slot order. In a group no slot is leased twice."""
        if self._placed.grouped:
            return []
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
        since = self._readable()
        return since if since > lease.at else lease.at

    def _readable(self) -> float:
        """The time from which the newest version could be read: the first time that anyone asked after its commit."""
        version, at = self._readable_since
        newest = self._log.version
        if version != newest:
            at = self._clock.now
            self._readable_since = (newest, at)
        return at

    def holds_back(self, node: NodeId, end_step: int, waiting: Collection[NodeId]) -> bool:
        """Whether `node` is so slow that the other workers finish all unleased slots before `node` would finish one."""
        leases = self._leases
        if not self._speeds.is_slow(node, self._clock.now) or leases.requeued.slots or leases.reserved.has(node):
            return False
        slots = self._slots_left(end_step)
        if not slots:
            return False
        number = leases.live.num_open
        if number:
            self._readable()  # also if the answer needs no lease: the time of this question counts
        number += len(waiting)
        return self._speeds.others_are_sooner(node, slots, self._others(node, waiting), number)

    def _slots_left(self, end_step: int) -> int:
        """How many slots are not leased yet; 0 if there are so many that every worker may have one."""
        most = 4 * len(self._members.members)
        in_step = self._phases.schedule.window(self._log.watermark.low) == 0
        slots = self._leases.unleased(end_step, most=None if in_step else most)
        return slots if slots <= most else 0

    # ------------------------------------------------------------ all workers that wait, by one question

    def waits(self, node: NodeId, phase: int) -> None:
        """Note that `node` waits for a slot of `phase`."""
        mean, until = self._speeds.measured(node)
        idle = self._idle
        same = phase == idle.phase or idle.mean == inf
        self._idle = _Idle(min(mean, idle.mean), min(until, idle.until), phase if same else -1)

    def waiting_again(self, turns: Mapping[NodeId, Turn]) -> None:
        """Note all workers that wait: those that no longer wait do not count any more."""
        self._idle = _Idle(inf, inf, -1)
        for node, turn in turns.items():
            self.waits(node, turn.phase)

    def holds_back_all(self, end_step: int, phase: int, waiting: Collection[NodeId]) -> bool:
        """Whether `holds_back` is true for all that wait; False also if that is not certain.

        If a worker as fast as the fastest of them is held back, then all are: no slower one ends a slot before it, and
        the others end at least as many slots before a slower one.
        """
        idle, leases = self._idle, self._leases
        if (
            idle.phase != phase
            or self._clock.now >= idle.until - _MARGIN_S
            or not self._speeds.would_be_slow(idle.mean)
        ):
            return False
        if self._late or leases.requeued.slots or leases.reserved.of:
            return False
        slots = self._slots_left(end_step)
        number = leases.live.num_open + len(waiting)
        return bool(slots) and self._speeds.are_sooner(idle.mean, slots, self._others("", waiting), number)

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
