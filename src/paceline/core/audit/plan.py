"""Read the phases and segments of a log, and check that each begins where the one before it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from paceline.core.audit.case import Case
from paceline.core.effects import PhaseFact, SegmentFact, StopFact
from paceline.core.sampling import cut_of, data_before, phase_end, phase_rest, sample_range
from paceline.core.schedule import Schedule
from paceline.types import UNLIMITED, PhaseEntry, PhaseSpec, Segment

_LARGEST = 1 << 40


class AuditedPlan(NamedTuple):
    """The phases of an incarnation, the segments that decide in the end, and all that ever did.

    `lasts` has the segment in which each phase ends, by its number. A segment that ends a phase early, because the job
    stops, is in `every` alone: with a window, later steps may have been committed before.
    """

    phases: list[PhaseEntry]
    schedule: Schedule
    lasts: dict[int, Segment]
    every: list[Segment]


def plan(case: Case, incarnation: int, *, check: bool = False) -> AuditedPlan:
    """The plan of an incarnation: what it began with, then what it added. With `check`, check it."""
    fact = case.begun.get(incarnation)
    position = fact.position if fact is not None else None
    phases = list(position.phases) if position is not None else []
    segments = list(position.segments) if position is not None else []
    for row in case.facts:
        if row.incarnation != incarnation:
            continue
        match row.fact:
            case PhaseFact(spec, segment, more):
                phases.append(PhaseEntry(spec, segment, segment.end_step))
                segments += [segment, *more]
            case SegmentFact(segments=changed):
                segments += changed
            case StopFact(closing=closing) if closing is not None:
                segments.append(closing)
    schedule = Schedule(s for s in segments if _is_sound(s) and s.step < s.end_step)
    lasts = {entry.spec.number: entry.segment for entry in phases}
    lasts |= {segment.phase: segment for segment in schedule.segments}
    if check:
        _phases(case, phases, segments, lasts)
        _boundaries(case, phases, segments)
    sound = [entry for entry in phases if _is_sound(entry.segment)]
    ends = [entry.segment.step for entry in sound[1:]] + [lasts[e.spec.number].end_step for e in sound[-1:]]
    entries = [
        PhaseEntry(e.spec, e.segment, min(end, lasts[e.spec.number].end_step))
        for e, end in zip(sound, ends, strict=True)
    ]
    return AuditedPlan(entries, schedule, lasts, segments)


def _phases(case: Case, phases: list[PhaseEntry], segments: list[Segment], lasts: Mapping[int, Segment]) -> None:
    """Check that each phase has the data that `batches()` asked for, and begins where the phase before it ended."""
    last: Segment | None = None
    firsts = {entry.segment for entry in phases}
    closing = {s.phase: s for s in segments if s.step == s.end_step and s not in firsts}
    for number, entry in enumerate(phases):
        spec, segment = entry.spec, entry.segment
        if not _is_sound(segment):
            case.report.add("phase", f"the segment of phase {number} has impossible numbers: {segment}", phase=number)
            continue
        as_asked = _asked(number, spec) == _got(segment) and phase_end(spec, segment) == segment
        if not as_asked or (segment.offset and not spec.steps):
            detail = f"phase {number} was declared as {spec}, but its segment is {segment}"
            case.report.add("phase", detail, phase=number, step=segment.step)
        step, (epoch, offset) = 0 if last is None else last.end_step, data_before(spec, last)
        if number and (segment.step, segment.epoch, segment.offset) != (step, epoch, offset):
            detail = f"phase {number} begins at step {segment.step} in epoch {segment.epoch}, not at step {step} in "
            detail += f"epoch {epoch}" + f" (sample {segment.offset} instead of {offset})" * (segment.offset != offset)
            case.report.add("phase", detail, phase=number, step=step)
        last = closing.get(segment.phase, lasts.get(segment.phase, segment))


def _asked(number: int, spec: PhaseSpec) -> tuple[object, ...]:
    return number, *cut_of(spec)


def _got(segment: Segment) -> tuple[object, ...]:
    return segment.phase, *cut_of(segment)


def _boundaries(case: Case, phases: list[PhaseEntry], segments: list[Segment]) -> None:
    """Check that each later segment of a phase goes on at the sample where the one before it ends, to the same end."""
    firsts, before = {entry.segment for entry in phases}, Schedule()
    entries = {entry.spec.number: entry for entry in phases}
    for segment in filter(_is_sound, segments):
        later = bool(before.segments) and before.segments[0].step <= segment.step and before.covers(segment.step)
        if later and segment not in firsts:
            at = sample_range(before.segment(segment.step), segment.step)
            if (at.epoch, at.offset) != (segment.epoch, segment.offset):
                detail = f"the segment from step {segment.step} on begins at sample {segment.offset} of epoch "
                detail += f"{segment.epoch}, not at {at.offset} of {at.epoch}"
                case.report.add("phase", detail, phase=segment.phase, step=segment.step)
            entry = entries.get(segment.phase)
            if entry is not None and segment.step < segment.end_step and not _goes_on(entry, segment):
                detail = f"the segment from step {segment.step} on does not go on with phase {segment.phase}: {segment}"
                case.report.add("phase", detail, phase=segment.phase, step=segment.step)
        before.append(segment)


def _goes_on(entry: PhaseEntry, segment: Segment) -> bool:
    """Whether a later segment of a phase has its data and its end."""
    if _got(segment) != _asked(entry.spec.number, entry.spec):
        return False
    if not entry.spec.steps and segment.end_epoch != entry.segment.end_epoch:
        return False
    return phase_rest(entry.spec, entry.segment.step, segment) == segment


def _is_sound(segment: Segment) -> bool:
    """Whether the numbers of a segment are possible, so that its steps can be computed."""
    numbers = (segment.step, segment.epoch, segment.offset, segment.data_len, segment.end_step, segment.end_epoch)
    if min(numbers) < 0 or max(numbers) > _LARGEST or min(segment.slots, segment.batch_size) < 1:
        return False
    if segment.end_step < segment.step or segment.offset > segment.data_len or segment.window < UNLIMITED:
        return False
    if min(segment.block_size, segment.block_window) < 0 or (segment.block_size > 0) != (segment.block_window > 0):
        return False
    usable = segment.data_len >= (segment.batch_size if segment.drop_last else 1)
    return segment.slots * segment.batch_size <= _LARGEST and (usable or segment.step == segment.end_step)
