"""Phases of a job (calls of `batches`) and the segments they append."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from paceline.config.dials import parse_mode
from paceline.core.sampling import num_steps
from paceline.core.schedule import Schedule
from paceline.errors import MismatchError
from paceline.messages import JobArgs
from paceline.types import PhaseSpec, Segment


@dataclass(slots=True)
class Phase:
    """One call of `batches`: its steps are [start, end). `end_version` is set once all are committed."""

    spec: PhaseSpec
    start: int
    end: int
    end_version: int | None = None


class PhaseBook:
    """Phases in order; at most the last one is open."""

    def __init__(self, schedule: Schedule, num_workers: int) -> None:
        self.schedule = schedule
        self.num_workers = num_workers
        self.phases: list[Phase] = []

    @property
    def open(self) -> Phase | None:
        """The phase being trained, None between phases."""
        return self.phases[-1] if self.phases and self.phases[-1].end_version is None else None

    def begin(self, spec: PhaseSpec, job: JobArgs, worker: str) -> Segment | None:
        """A worker enters phase `spec.number`; returns the segment if this is the first to do so.

        Raises:
            MismatchError: another worker entered this phase with other data or other numbers.
        """
        if spec.number < len(self.phases):
            known = self.phases[spec.number].spec
            for name in spec.__struct_fields__:
                if getattr(spec, name) != getattr(known, name):
                    raise MismatchError(
                        f"{worker} called batches() number {spec.number} with {name}={getattr(spec, name)!r}, "
                        f"others with {name}={getattr(known, name)!r}: every worker must run the same loop"
                    )
            return None
        segment = self._segment(spec, job)
        self.schedule.append(segment)
        self.phases.append(Phase(spec, segment.step, segment.end_step))
        return segment

    def _segment(self, spec: PhaseSpec, job: JobArgs) -> Segment:
        mode = parse_mode(job.mode)
        slots = job.slots or spec.slots or mode.default_slots or self.num_workers
        last = self.schedule.segments[-1] if self.schedule.segments else None
        step = last.end_step if last else 0
        epoch = last.end_epoch if last else 0
        segment = Segment(
            step=step,
            phase=spec.number,
            epoch=epoch,
            offset=0,
            end_step=step,
            end_epoch=epoch + spec.epochs,
            data_len=spec.data_len,
            slots=slots,
            batch_size=spec.batch_size,
            shuffle=spec.shuffle,
            drop_last=spec.drop_last,
            window=mode.window,
            mode=mode.name,
        )
        return msgspec.structs.replace(segment, end_step=step + num_steps(segment))

    def end_at(self, step: int) -> None:
        """The open phase ends before `step`."""
        phase = self.open
        if phase is not None:
            phase.end = max(phase.start, min(phase.end, step))
