"""The plan of a job in words: from which step on which dials hold."""

from __future__ import annotations

from paceline.config.live import in_words
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.coordinator.tables.phases import PhaseBook
from paceline.types import Segment


def plan_lines(core: CoordinatorCore) -> tuple[str, ...]:
    """A line for each segment with other dials than the one before it; none if the dials never change."""
    book = core.tables.phases
    segments = [s for s in core.schedule.segments if s.step < s.end_step]
    segments = [s for s in segments if core.schedule.segment(s.step) is s]  # not those that were replaced
    lines, before = [], None
    for segment in segments:
        if _dials(segment) != before:
            lines.append(_line(book, segment))
        before = _dials(segment)
    for at, _, change, reason in book.changes:
        if at >= core.schedule.end_step:
            lines.append(f"from step {at}: {in_words(change)}" + f" ({reason})" * bool(reason))
    return tuple(lines) if len(lines) > 1 or book.changes else ()


def _dials(segment: Segment) -> tuple[object, ...]:
    return segment.mode, segment.slots, segment.lr, segment.lr_scale


def _line(book: PhaseBook, segment: Segment) -> str:
    text = f"from step {segment.step}: {segment.mode}, {segment.slots} slot{'s' * (segment.slots != 1)}"
    if segment.lr:
        text += f", lr {segment.lr:g}"
    elif segment.lr_scale != 1.0:
        text += f", lr x{segment.lr_scale:g}"
    reasons = [known.reason for known in book.changes if known.step == segment.step and known.reason]
    return text + f" ({'; '.join(reasons)})" * bool(reasons)
