"""The dials of each step: scheduled rows and live changes, and the segments of a phase that follow from them.

A row of the schedule sets the mode. A live change of the mode or of the slots holds until the next row; one of the
learning rate or of the checkpoints holds until the next change of the same dial. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from paceline.config.dials import Mode, parse_mode
from paceline.config.live import Row
from paceline.core.sampling import phase_rest, sample_range
from paceline.types import DialChange, PhaseSpec, Segment


class LiveChange(NamedTuple):
    """A change of dials that holds from `step` on. `revision` is that of the plan that the change has made."""

    step: int
    revision: int
    change: DialChange
    reason: str = ""


class Dials(NamedTuple):
    """The dials of a step. `slots` is 0 if nothing has set them, then they follow from the mode."""

    mode: Mode
    slots: int
    lr: float
    lr_scale: float


def with_change(changes: Sequence[LiveChange], new: LiveChange) -> tuple[LiveChange, ...]:
    """`changes` with `new`, which replaces what earlier ones say of its dials for its step and later ones."""
    kept = []
    for old in changes:
        change = _without(old.change, new.change) if old.step >= new.step else old.change
        if change != DialChange():
            kept.append(old._replace(change=change))
    return tuple(sorted([*kept, new], key=lambda known: known.step))


def _without(old: DialChange, new: DialChange) -> DialChange:
    if new.mode:
        old = replace(old, mode="", slots=0)
    if new.slots:
        old = replace(old, slots=0)
    if new.lr or new.lr_scale:
        old = replace(old, lr=0.0, lr_scale=0.0)
    if new.checkpoint_steps >= 0:
        old = replace(old, checkpoint_steps=-1, checkpoint_s=-1.0)
    return old


def dials_at(step: int, rows: Sequence[Row], changes: Iterable[LiveChange]) -> Dials:
    """The dials of `step`. A change for the first step of a row replaces the mode of the row."""
    row = next(row for row in reversed(rows) if row.start <= step)
    mode, since, slots, lr, lr_scale = row.mode, row.start, 0, 0.0, 1.0
    for at, _, change, _ in changes:
        if at > step:
            break
        if change.mode and at >= since:
            mode, since, slots = parse_mode(change.mode), at, 0
        if change.slots and at >= since:
            slots = change.slots
        if change.lr or change.lr_scale:
            lr, lr_scale = change.lr, change.lr_scale or 1.0
    return Dials(mode, slots, lr, lr_scale)


def checkpoints_at(step: int, changes: Iterable[LiveChange]) -> tuple[int, float] | None:
    """When checkpoints are due at `step`, as (versions, seconds); None if no change says it."""
    found = None
    for at, _, change, _ in changes:
        if at <= step and change.checkpoint_steps >= 0:
            found = change.checkpoint_steps, change.checkpoint_s
    return found


SlotsOf = Callable[[Dials], int]
"""How many slots a step with these dials has."""


def segments_from(
    spec: PhaseSpec, start: int, begun: Segment, rows: Sequence[Row], changes: Sequence[LiveChange], slots_of: SlotsOf
) -> list[Segment]:
    """The segments of phase `spec`, which begins at step `start`, from `begun` on.

    `begun` has the dials of its step. Each further segment begins at the sample at which the one before ends.
    """
    out = [begun]
    for step in boundaries(begun.step, rows, changes):
        last = out[-1]
        if step >= last.end_step:
            break
        out.append(next_segment(spec, start, last, step, rows, changes, slots_of))
    return out


def next_segment(
    spec: PhaseSpec,
    start: int,
    last: Segment,
    step: int,
    rows: Sequence[Row],
    changes: Sequence[LiveChange],
    slots_of: SlotsOf,
) -> Segment:
    """The segment from `step` on, which lies in the segment `last` of phase `spec`, with the dials of `step`."""
    dials, at = dials_at(step, rows, changes), sample_range(last, step)
    begins_row = any(row.start == step for row in rows)
    names_slots = any(known.step == step and (known.change.mode or known.change.slots) for known in changes)
    differs = dials.mode.name != last.mode or dials.slots not in (0, last.slots)
    segment = replace(
        last,
        step=step,
        epoch=at.epoch,
        offset=at.offset,
        slots=slots_of(dials) if begins_row or names_slots or differs else last.slots,
        window=dials.mode.window,
        mode=dials.mode.name,
        lr=dials.lr,
        lr_scale=dials.lr_scale,
        revision=max([last.revision, *(known.revision for known in changes if known.step == step)]),
    )
    return phase_rest(spec, start, segment)


def boundaries(after: int, rows: Sequence[Row], changes: Sequence[LiveChange]) -> Iterator[int]:
    """The steps above `after` at which a row or a change begins, in order."""
    return iter(sorted({step for step in (*(r.start for r in rows), *(c.step for c in changes)) if step > after}))
