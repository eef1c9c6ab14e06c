"""Phases of a job (calls of `batches`) and the segments they append."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from paceline.config.dials import parse_mode
from paceline.core.sampling import data_before, phase_end
from paceline.core.schedule import Schedule
from paceline.errors import MismatchError
from paceline.messages import JobArgs, Position
from paceline.types import Measured, PhaseEntry, PhaseSpec, Segment

_ARGUMENTS = {"data_len": "a data set of length "}
"""How a message names a field of `PhaseSpec` that is not an argument of `job.batches`."""


@dataclass(slots=True)
class Phase:
    """One call of `batches`: its steps are [start, end). `end_version` is set once all its steps are committed.

    `metrics` is what every worker gets that leaves the phase; it is set when the first worker leaves.
    """

    spec: PhaseSpec
    segment: Segment
    end: int
    end_version: int | None = None
    metrics: dict[str, Measured] | None = None

    @property
    def start(self) -> int:
        """The first step of the phase."""
        return self.segment.step

    @property
    def entry(self) -> PhaseEntry:
        """The phase as a checkpoint holds it."""
        entry = PhaseEntry(self.spec, self.segment, self.end, self.end_version)
        if self.metrics is None:
            return entry
        values = {name: measured.value for name, measured in self.metrics.items()}
        steps = {name: measured.step for name, measured in self.metrics.items()}
        return msgspec.structs.replace(entry, metrics=values, metric_steps=steps)

    @classmethod
    def of(cls, entry: PhaseEntry) -> Phase:
        """The phase that `entry` of a checkpoint describes."""
        steps, end = entry.metric_steps, -1 if entry.end_version is None else entry.end_version
        metrics = {name: Measured(value, steps.get(name, end)) for name, value in (entry.metrics or {}).items()}
        known = metrics if entry.metrics is not None else None
        return cls(entry.spec, entry.segment, entry.end, entry.end_version, known)


class PhaseBook:
    """Phases in order, and the schedule that they make; the last one may be `open`. Only `Segments` changes it."""

    def __init__(self, num_workers: int) -> None:
        """A phase without a number of slots gets one for each of `num_workers`."""
        self.num_workers = num_workers
        self.schedule = Schedule()
        self.phases: list[Phase] = []
        self.open: Phase | None = None

    def reset(self, position: Position | None) -> None:
        """Return to the phases of `position`."""
        self.schedule = Schedule(() if position is None else position.segments)
        self.phases = [] if position is None else [Phase.of(entry) for entry in position.phases]
        self._find_open()

    def _find_open(self) -> None:
        self.open = self.phases[-1] if self.phases and self.phases[-1].end_version is None else None

    def add(self, spec: PhaseSpec, segment: Segment) -> None:
        """Begin a phase with `segment`."""
        self.schedule.append(segment)
        self.phases.append(Phase(spec, segment, segment.end_step))
        self._find_open()

    def cut(self, closing: Segment) -> None:
        """Append the segment `closing`, which ends the phase early."""
        self.schedule.append(closing)

    def close(self, version: int) -> None:
        """Close the open phase: all its steps are committed, the last one as `version`."""
        self.phases[-1].end_version = version
        self._find_open()

    def close_earlier(self) -> None:
        """Close all phases but the last, since a phase begins after the one before has ended. A step is one version."""
        for phase in self.phases[:-1]:
            if phase.end_version is None:
                phase.end_version = phase.end

    def set_metrics(self, phase: Phase, metrics: dict[str, Measured]) -> None:
        """Set the metrics that every worker gets that leaves `phase`, even if there are newer ones then."""
        phase.metrics = metrics

    def begin(self, spec: PhaseSpec, job: JobArgs, worker: str) -> Segment | None:
        """A worker enters phase `spec.number`; returns the segment if this is the first to do so.

        Raises:
            MismatchError: another worker entered this phase with other data or other numbers.
        """
        if spec.number < len(self.phases):
            known = self.phases[spec.number].spec
            for name in spec.__struct_fields__:
                if getattr(spec, name) != getattr(known, name):
                    argument = _ARGUMENTS.get(name, f"{name}=")
                    raise MismatchError(
                        f"{worker} began its loop number {spec.number + 1} over job.batches(...) with "
                        f"{argument}{getattr(spec, name)!r}, the job has {argument}{getattr(known, name)!r} there: "
                        "every worker, and every resume of the run, must run the same loops"
                    )
            return None
        if spec.number > len(self.phases) or self.open is not None:
            raise MismatchError(
                f"{worker} began its loop number {spec.number + 1} over job.batches(...), but the job is in loop "
                f"number {len(self.phases)}: every worker must run the same loops in the same order"
            )
        segment = self._segment(spec, job)
        self.add(spec, segment)
        return segment

    def _segment(self, spec: PhaseSpec, job: JobArgs) -> Segment:
        mode = parse_mode(job.mode)
        slots = job.slots or spec.slots or mode.default_slots or self.num_workers
        last = self.schedule.segments[-1] if self.schedule.segments else None
        step = last.end_step if last else 0
        epoch, offset = data_before(spec, last)
        segment = Segment(
            step=step,
            phase=spec.number,
            epoch=epoch,
            offset=offset,
            end_step=step,
            end_epoch=epoch,
            data_len=spec.data_len,
            slots=slots,
            batch_size=spec.batch_size,
            shuffle=spec.shuffle,
            drop_last=spec.drop_last,
            window=mode.window,
            mode=mode.name,
        )
        return phase_end(spec, segment)

    def end_at(self, step: int) -> Segment | None:
        """End the open phase before `step`; returns the segment that says so, None if it ends there anyway."""
        phase = self.open
        assert phase is not None
        end = max(phase.start, step)
        if end >= phase.end:
            return None
        phase.end = end
        at = self.schedule.place(end)
        return msgspec.structs.replace(
            self.schedule.segment(end),
            step=end,
            epoch=at.epoch,
            offset=at.offset,
            end_step=end,
            end_epoch=at.epoch,
        )
