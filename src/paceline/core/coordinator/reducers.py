"""Which reducer the steps of the job have: servers, or a group of members. A step's segment decides."""

from __future__ import annotations

from paceline.core.coordinator.job_identity import Identity
from paceline.core.coordinator.tables.commit_log import CommitLog
from paceline.core.coordinator.tables.phases import PhaseBook
from paceline.core.coordinator.tables.placement import PlacedBlocks


class Reducers:
    """Compares the reducer of the next step with that of the placement in force. It has no facts of its own."""

    def __init__(self, identity: Identity, phases: PhaseBook, log: CommitLog, placed: PlacedBlocks) -> None:
        self._identity = identity
        self._phases = phases
        self._log = log
        self._placed = placed

    def in_group(self, step: int) -> bool:
        """Whether the slots of `step` meet in a group of members. False for a run whose workers host none."""
        job = self._identity.job
        return self._identity.spec.collective and job is not None and self._phases.in_group(step, job)

    @property
    def wanted(self) -> bool:
        """Whether the lowest uncommitted step is one of a group."""
        return self.in_group(self._log.watermark.low)

    @property
    def must_move(self) -> bool:
        """Whether the lowest uncommitted step has another reducer than the placement: no step is leased before a move.

        All steps below are committed then, since a segment with another reducer begins after them.
        """
        return self._identity.spec.collective and self._placed.grouped != self.wanted

    @property
    def next_move(self) -> int | None:
        """The first step above the lowest uncommitted one that has another reducer; None if there is none."""
        job = self._identity.job
        if not self._identity.spec.collective or job is None:
            return None
        return self._phases.next_reducer(self._log.watermark.low, job)
