"""A list of checkpoints, as rows for programs and as lines of text for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paceline.checkpoint.manifest import Listed, parse_folder
from paceline.core.schedule import Schedule
from paceline.messages import Position


class Row(msgspec.Struct, frozen=True):
    """One checkpoint. If it is damaged or incomplete, `instead` is the older checkpoint that a resume would use."""

    folder: str
    incarnation: int
    version: int
    step: int | None = None
    epoch: int | None = None
    nbytes: int | None = None
    age_s: float | None = None
    problem: str | None = None
    instead: str | None = None
    damaged: bool = False


def rows_of(found: Sequence[Listed], now: float) -> list[Row]:
    """Describe the checkpoints `found`, which are sorted oldest first. `now` is the time of day."""
    rows: list[Row] = []
    complete = [listed.folder for listed in found if listed.problem is None]
    for number, listed in enumerate(found):
        _, incarnation, version = parse_folder(listed.folder) or (-1, -1, -1)
        manifest = listed.manifest
        if manifest is None:
            newer = any(later.problem is None for later in found[number:])
            instead = None if newer or not complete else complete[-1]
            why = listed.problem
            rows.append(Row(listed.folder, incarnation, version, problem=why, instead=instead, damaged=listed.damaged))
            continue
        at, age_s = manifest.position, max(0.0, now - manifest.made_at) if manifest.made_at else None
        rows.append(Row(listed.folder, incarnation, version, at.watermark, _epoch(at), manifest.nbytes, age_s))
    return rows


def _epoch(position: Position) -> int:
    schedule = Schedule(position.segments)
    if not schedule.segments:
        return 0
    if position.watermark < schedule.end_step:
        return schedule.place(position.watermark).epoch
    return schedule.segments[-1].end_epoch


def lines_of(rows: Sequence[Row]) -> list[str]:
    """One line of text for each checkpoint."""
    return [_line(row, any(later.problem is None for later in rows[n + 1 :])) for n, row in enumerate(rows)]


def _line(row: Row, newer: bool) -> str:
    if row.problem is None:
        age = "" if row.age_s is None else f", {_age(row.age_s)} old"
        return f"{row.folder}  step {row.step}, epoch {row.epoch}, {_size(row.nbytes or 0)}{age}"
    if row.instead is not None:
        return f"{row.folder}  {row.problem}; {row.instead} would be used instead"
    return f"{row.folder}  {row.problem}" + ("" if newer else "; there is no older one to use instead")


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
