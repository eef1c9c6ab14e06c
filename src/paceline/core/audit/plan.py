"""Read the phases and segments of a log, and check that each begins where the one before it ends."""

from __future__ import annotations

from paceline.core.audit.case import Case
from paceline.core.effects import PhaseFact, StopFact
from paceline.core.sampling import data_before, phase_end, sample_range
from paceline.core.schedule import Schedule
from paceline.types import UNLIMITED, PhaseEntry, Segment

_LARGEST = 1 << 40


def plan(case: Case, incarnation: int, *, check: bool = False) -> tuple[list[PhaseEntry], Schedule]:
    """The phases and segments of an incarnation: those it began with, then those it added. With `check`, check them."""
    fact = case.begun.get(incarnation)
    position = fact.position if fact is not None else None
    phases = list(position.phases) if position is not None else []
    segments = list(position.segments) if position is not None else []
    for row in case.facts:
        if row.incarnation == incarnation and isinstance(row.fact, PhaseFact):
            phases.append(PhaseEntry(row.fact.spec, row.fact.segment, row.fact.segment.end_step))
            segments.append(row.fact.segment)
        elif row.incarnation == incarnation and isinstance(row.fact, StopFact) and row.fact.closing is not None:
            segments.append(row.fact.closing)
    if check:
        _phases(case, phases, segments)
    sound = [entry for entry in phases if _is_sound(entry.segment)]
    ends = [entry.segment.step for entry in sound[1:]] + [entry.segment.end_step for entry in sound[-1:]]
    entries = [PhaseEntry(e.spec, e.segment, min(end, e.segment.end_step)) for e, end in zip(sound, ends, strict=True)]
    # Leave out segments that end a phase early: with a window, later steps may have been committed before that.
    return entries, Schedule(s for s in segments if _is_sound(s) and s.step < s.end_step)


def _phases(case: Case, phases: list[PhaseEntry], segments: list[Segment]) -> None:
    """Check that each phase has the data that `batches()` asked for, and begins where the phase before it ended."""
    last: Segment | None = None
    firsts = {entry.segment for entry in phases}
    closing = {s.phase: s for s in segments if s.step == s.end_step and s not in firsts}
    for number, entry in enumerate(phases):
        spec, segment = entry.spec, entry.segment
        if not _is_sound(segment):
            case.report.add("phase", f"the segment of phase {number} has impossible numbers: {segment}", phase=number)
            continue
        asked = (number, spec.data_len, spec.batch_size, spec.shuffle, spec.drop_last)
        got = (segment.phase, segment.data_len, segment.batch_size, segment.shuffle, segment.drop_last)
        if got != asked or phase_end(spec, segment) != segment or (segment.offset and not spec.steps):
            detail = f"phase {number} was declared as {spec}, but its segment is {segment}"
            case.report.add("phase", detail, phase=number, step=segment.step)
        step, (epoch, offset) = 0 if last is None else last.end_step, data_before(spec, last)
        if number and (segment.step, segment.epoch, segment.offset) != (step, epoch, offset):
            detail = f"phase {number} begins at step {segment.step} in epoch {segment.epoch}, not at step {step} in "
            detail += f"epoch {epoch}" + f" (sample {segment.offset} instead of {offset})" * (segment.offset != offset)
            case.report.add("phase", detail, phase=number, step=step)
        last = closing.get(segment.phase, segment)
    before = Schedule()
    for segment in filter(_is_sound, segments):
        later = bool(before.segments) and segment.step >= before.segments[-1].step and before.covers(segment.step)
        if later and segment not in firsts:
            at = sample_range(before.segments[-1], segment.step)
            if (at.epoch, at.offset) != (segment.epoch, segment.offset):
                detail = f"the segment from step {segment.step} on begins at sample {segment.offset} of epoch "
                detail += f"{segment.epoch}, not at {at.offset} of {at.epoch}"
                case.report.add("phase", detail, phase=segment.phase, step=segment.step)
        before.append(segment)


def _is_sound(segment: Segment) -> bool:
    """Whether the numbers of a segment are possible, so that its steps can be computed."""
    numbers = (segment.step, segment.epoch, segment.offset, segment.data_len, segment.end_step, segment.end_epoch)
    if min(numbers) < 0 or max(numbers) > _LARGEST or min(segment.slots, segment.batch_size) < 1:
        return False
    if segment.end_step < segment.step or segment.offset > segment.data_len or segment.window < UNLIMITED:
        return False
    usable = segment.data_len >= (segment.batch_size if segment.drop_last else 1)
    return segment.slots * segment.batch_size <= _LARGEST and (usable or segment.step == segment.end_step)
