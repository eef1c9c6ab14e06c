"""Check the rules of workers: on which state they may compute a turn, and with which version a phase ends."""

from __future__ import annotations

from paceline.core.sampling import sample_range
from paceline.core.window import admits
from paceline.messages import PhaseOver
from paceline.sim.record import Record
from paceline.sim.symbols import Reads
from paceline.sim.world import Violation
from paceline.types import UNLIMITED, Segment


class WorkerChecks:
    """Compares what workers read with the record."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def may_compute(self, step: int, reads: Reads, name: str, *, ahead: bool = False) -> None:
        """Check the state on which a turn of `step` is computed.

        In lock-step, every block must be at version `step`; with a window, no block may be older than the window. With
        `ahead`, the state was read before its commit, and may never be committed: then the turn must not count.
        """
        record = self._record
        if reads.incarnation != record.incarnation:
            return  # servers refuse the gradients of an earlier incarnation
        window, line = record.schedule.window(step), record.line
        for block, (version, value) in enumerate(zip(reads.versions, reads.values, strict=True)):
            if ahead and version == step:
                continue
            if not line.is_value(version, value, block):
                raise Violation(f"{name} read {value} as version {version} of block {block}")
            if window == 0 and version != step:
                raise Violation(f"{name} was computed on version {version} of block {block}: a mixed read")
            if window not in (0, UNLIMITED) and not admits(window, step, line.marks[version]):
                raise Violation(
                    f"{name} was computed on block {block} at version {version}, which has only the steps "
                    f"below {line.marks[version]}; the window is {window}"
                )

    def has_version(self, reads: Reads, version: int, name: str) -> None:
        """Check that every block of a model is exactly at `version`."""
        line = self._record.lines[reads.incarnation]
        for block, value in enumerate(reads.values):
            if not line.is_value(version, value, block):
                raise Violation(f"{name} needs version {version} of block {block} and has {value}")

    def phase_ended(self, name: str, over: PhaseOver, reads: Reads, *, was_there: bool) -> None:
        """Check a worker that leaves a phase. If it `was_there` to the end, it must have the last version."""
        if over.version < 0:
            if was_there:
                raise Violation(f"{name} took part in phase {over.phase} but was not given its last version")
            return
        first = self._record.lines[over.incarnation].end_phase(over.phase, over.version)
        if first != over.version:
            raise Violation(f"{name} leaves phase {over.phase} with version {over.version}, others with {first}")
        self.has_version(reads, over.version, name)


def weight(segment: Segment, step: int, slot: int) -> float:
    """The samples of the slot, divided by the slot batch."""
    at = sample_range(segment, step)
    return min(segment.batch_size, at.samples - slot * segment.batch_size) / segment.batch_size
