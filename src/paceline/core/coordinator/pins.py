"""Pins: which versions servers must keep readable, and for which reasons."""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    AttendanceChanged,
    Output,
    PhaseEnded,
    RoundEnded,
    StepCommitted,
    VersionsKept,
    WorkersGone,
)
from paceline.core.coordinator.tables.pins import VALIDATION, ForPhase, Reason
from paceline.core.effects import History, Send
from paceline.messages import Position, Unpin


class Pins:
    """Pins versions, and tells servers when one need not be kept any more."""

    def __init__(self, tables: Tables) -> None:
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._placed = tables.placed
        self._phases = tables.phases
        self._attendance = tables.attendance
        self._clock = tables.clock
        self._book = tables.pins
        self._pinned_phases: list[int] = []
        self._unpin_next: int | None = None

    def restore(self, history: History) -> list[Output]:
        """Do nothing: versions are pinned once the holders of blocks have reported which versions they kept."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Forget all pins."""
        self._book.clear()
        self._pinned_phases = []
        self._unpin_next = None
        return []

    def pin_for_validation(self, version: int) -> None:
        """Pin `version` for a round of validation."""
        self._book.add(version, VALIDATION)

    def phase_ended(self, event: PhaseEnded) -> list[Output]:
        """Pin the last version of a phase until every active worker has left the phase."""
        self._book.add(event.version, ForPhase(event.number))
        self._pinned_phases.append(event.number)
        return []

    def versions_kept(self, event: VersionsKept) -> list[Output]:
        """Pin the last version of the last closed phase again if servers kept it: some worker may not have read it."""
        closed = [p for p in self._phases.phases if p.end_version is not None]
        for phase in closed[-1:]:
            number, end = phase.spec.number, phase.end_version
            if end is not None and end in event.versions and number not in self._pinned_phases:
                self._book.add(end, ForPhase(number))
                self._pinned_phases.append(number)
        return []

    def round_ended(self, event: RoundEnded) -> list[Output]:
        """Release a version that no round of validation reads any more."""
        return self._unpin(event.version, VALIDATION) if event.last_of_version else []

    def committed(self, event: StepCommitted) -> list[Output]:
        """Tell the servers to drop a version whose pin ended while it was the current one."""
        version = self._unpin_next
        if version is None:
            return []
        self._unpin_next = None
        if version in self._book:
            return []
        return self._tell(version)

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Release phases: the workers may have been the last ones in a phase."""
        return [] if self._identity.failure is not None else self.release_phases()

    def attendance_changed(self, event: AttendanceChanged) -> list[Output]:
        """Release phases: a worker may have left one."""
        return self.release_phases()

    def release_phases(self) -> list[Output]:
        """Release the last version of each phase that every active worker has left."""
        if not self._pinned_phases or self._incarnation.awaited or self._clock.now < self._incarnation.term_until:
            return []
        lowest = self._attendance.lowest(default=len(self._phases.phases))
        released = [n for n in self._pinned_phases if n < lowest]
        self._pinned_phases = [n for n in self._pinned_phases if n >= lowest]
        out: list[Output] = []
        for number in released:
            version = self._phases.phases[number].end_version
            assert version is not None
            out += self._unpin(version, ForPhase(number))
        return out

    def _unpin(self, version: int, reason: Reason) -> list[Output]:
        if not self._book.discard(version, reason):
            return []
        if version == self._log.version:
            # The current version is readable anyway, and may be pinned again: tell the servers after the next commit.
            self._unpin_next = version
            return []
        return self._tell(version)

    def _tell(self, version: int) -> list[Output]:
        unpin = Unpin(self._identity.generation, self._incarnation.number, version)
        return [Send(server, unpin) for server in self._placed.holders]
