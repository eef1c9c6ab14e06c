"""Phases of a job (calls of `batches`) and the segments they append."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from paceline.config.live import parse_schedule
from paceline.core.live_plan import (
    Dials,
    LiveChange,
    boundaries,
    checkpoints_at,
    dials_at,
    next_segment,
    segments_from,
    with_change,
)
from paceline.core.sampling import data_before, phase_end
from paceline.core.schedule import Schedule
from paceline.errors import MismatchError
from paceline.messages import JobArgs, Position
from paceline.types import Measured, PhaseEntry, PhaseSpec, Segment

_ARGUMENTS = {"data_len": "a data set of length "}
"""How a message names a field of `PhaseSpec` that is not an argument of `job.batches`."""


_rows = lru_cache(maxsize=4)(parse_schedule)


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
    """Phases in order, and the schedule that they make; the last one may be `open`. Only `Segments` changes it.

    `changes` are the live changes of dials, in the order of their steps. They outlive a rewind (rule 19).
    """

    def __init__(self, num_workers: int) -> None:
        """A phase without a number of slots gets one for each of `num_workers`."""
        self.num_workers = num_workers
        self.schedule = Schedule()
        self.phases: list[Phase] = []
        self.open: Phase | None = None
        self.changes: tuple[LiveChange, ...] = ()

    def reset(self, position: Position | None) -> None:
        """Return to the phases of `position`, as they were then; `keep_changes` follows."""
        self.schedule = Schedule(() if position is None else position.segments)
        self.phases = [] if position is None else [Phase.of(entry) for entry in position.phases]
        self._find_open()

    def _find_open(self) -> None:
        self.open = self.phases[-1] if self.phases and self.phases[-1].end_version is None else None

    def add(self, spec: PhaseSpec, segments: Sequence[Segment]) -> None:
        """Begin a phase with `segments`, the first of which is that of its first step."""
        for segment in segments:
            self.schedule.append(segment)
        self.phases.append(Phase(spec, segments[0], segments[-1].end_step))
        self._find_open()

    # ------------------------------------------------------------ live changes

    @property
    def next_revision(self) -> int:
        """The revision of the next segment: higher than all so far."""
        return max([self.schedule.revision, *(known.revision + 1 for known in self.changes)])

    def note_change(self, change: LiveChange) -> None:
        """Add a live change of dials; `replan` takes its segments."""
        self.changes = with_change(self.changes, change)

    def replan(self, segments: Sequence[Segment]) -> None:
        """Replace the plan of the open phase, from the first of `segments` on."""
        for segment in segments:
            self.schedule.append(segment)
        if segments and self.open is not None:
            self.open.end = segments[-1].end_step

    def keep_plan(self, plan: Sequence[Segment], free: int, job: JobArgs) -> list[Segment]:
        """Take over from `plan` the segments of the open phase that are later than those known; returns them.

        No step below `free` may change. If `plan` has other segments there, it is that of another line of incarnations:
        then the changes of the log hold from `free` on.
        """
        phase = self.open
        if phase is None:
            return []
        known = [_without_revision(s) for s in self.schedule.segments]
        mine = of_phase(plan, phase.spec.number)
        first = next((s.step for s in mine if _without_revision(s) not in known), None)
        if first is None:
            return []
        later = [s for s in mine if s.step >= first]
        if first < free:
            later = self._segments_from(phase, free, self.changes, job) if free < phase.end else []
        self.replan(later)
        return later

    def dials(self, step: int, job: JobArgs) -> Dials:
        """The dials of `step` as the command, the script and live changes say; `slots` is that of the plan."""
        dials = dials_at(step, _rows(job.mode), self.changes)
        return dials._replace(slots=self.schedule.segment(step).slots) if self._is_open(step) else dials

    def in_group(self, step: int, job: JobArgs) -> bool:
        """Whether the slots of `step` meet in a group of members, as the command, the script and live changes say."""
        return dials_at(step, _rows(job.mode), self.changes).mode.in_group

    def next_reducer(self, step: int, job: JobArgs) -> int | None:
        """The first step above `step` that has another reducer than `step`; None if there is none."""
        now = self.in_group(step, job)
        return next(
            (at for at in boundaries(step, _rows(job.mode), self.changes) if self.in_group(at, job) != now), None
        )

    def checkpoints(self, step: int) -> tuple[int, float] | None:
        """When checkpoints are due at `step`, as (versions, seconds); None: as the command says."""
        return checkpoints_at(step, self.changes) if self.changes else None

    def _is_open(self, step: int) -> bool:
        return self.open is not None and self.open.start <= step < self.open.end

    def changed(self, change: LiveChange, job: JobArgs) -> list[Segment]:
        """The segments from `change` on, which is not noted yet; none if its step is not in the open phase."""
        if self.open is None or not self._is_open(change.step):
            return []
        return self._segments_from(self.open, change.step, with_change(self.changes, change), job)

    def _segments_from(self, phase: Phase, step: int, changes: Sequence[LiveChange], job: JobArgs) -> list[Segment]:
        rows, last = _rows(job.mode), self.schedule.segment(step)

        def slots_of(dials: Dials) -> int:
            return self._slots(phase.spec, job, dials)

        begun = next_segment(phase.spec, phase.start, last, step, rows, changes, slots_of)
        return segments_from(phase.spec, phase.start, begun, rows, changes, slots_of)

    def last_segment(self, phase: Phase) -> Segment:
        """The segment in which `phase` ends. One that only closes the phase does not count."""
        mine = (s for s in reversed(self.schedule.segments) if s.phase == phase.spec.number and s.step < s.end_step)
        return next(mine, phase.segment)

    # ------------------------------------------------------------ the ends of phases

    def cut(self, closing: Segment) -> None:
        """Append the segment `closing`, which ends the phase early."""
        self.schedule.append(msgspec.structs.replace(closing, revision=self.schedule.revision))

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

    def begin(self, spec: PhaseSpec, job: JobArgs, worker: str) -> list[Segment]:
        """A worker enters phase `spec.number`; returns the segments of the phase if this is the first to do so.

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
            return []
        if spec.number > len(self.phases) or self.open is not None:
            raise MismatchError(
                f"{worker} began its loop number {spec.number + 1} over job.batches(...), but the job is in loop "
                f"number {len(self.phases)}: every worker must run the same loops in the same order"
            )
        rows, last = _rows(job.mode), self.schedule.segments[-1] if self.schedule.segments else None
        step = last.end_step if last else 0
        dials = dials_at(step, rows, self.changes)
        epoch, offset = data_before(spec, last)
        segment = Segment(
            step=step,
            phase=spec.number,
            epoch=epoch,
            offset=offset,
            end_step=step,
            end_epoch=epoch,
            data_len=spec.data_len,
            slots=self._slots(spec, job, dials),
            batch_size=spec.batch_size,
            shuffle=spec.shuffle,
            drop_last=spec.drop_last,
            window=dials.mode.window,
            mode=dials.mode.name,
            revision=self.next_revision,
            lr=dials.lr,
            lr_scale=dials.lr_scale,
            block_size=spec.block_size,
            block_window=spec.block_window,
            weights=spec.weights,
        )
        first = phase_end(spec, segment)
        segments = segments_from(spec, step, first, rows, self.changes, lambda dials: self._slots(spec, job, dials))
        self.add(spec, segments)
        return segments

    def _slots(self, spec: PhaseSpec, job: JobArgs, dials: Dials) -> int:
        return dials.slots or job.slots or spec.slots or dials.mode.default_slots or self.num_workers

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


def of_phase(plan: Sequence[Segment], phase: int) -> list[Segment]:
    """The segments of a phase in `plan`, without one that only ends it early, unless it is the first."""
    mine = [segment for segment in plan if segment.phase == phase]
    return mine[:1] + [segment for segment in mine[1:] if segment.step < segment.end_step]


def _without_revision(segment: Segment) -> Segment:
    return msgspec.structs.replace(segment, revision=0)
