"""Reads from the log what a starting coordinator needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from paceline.coordinator.tables import decode_values, read_commits, read_evaluations, read_facts
from paceline.core.effects import FactRow, History, IncarnationFact
from paceline.core.lineage import committed_steps, is_shared, shared_versions, start_of

TAIL = 4096
"""The number of newest commits that a restarted coordinator gets with all their fields."""


def read_history(db: sqlite3.Connection) -> History:
    """Read what earlier coordinators of this job have written, for a coordinator that starts."""
    facts = tuple(read_facts(db))
    shared = shared_versions(f.fact for f in facts if isinstance(f.fact, IncarnationFact))
    number, version, watermark, above = _reached(db, facts)
    samples, empty, staleness, lag = db.execute(
        "SELECT TOTAL(samples), TOTAL(empty), MAX(staleness), MAX(lag) FROM commits WHERE incarnation = ?", (number,)
    ).fetchone()
    tail = read_commits(db, "WHERE incarnation = ? ORDER BY version DESC LIMIT ?", (number, TAIL))
    return History(
        facts=facts,
        incarnation=number,
        version=version,
        watermark=watermark,
        above=above,
        tail=tuple(reversed(list(tail))),
        samples=samples,
        empty=int(empty),
        max_staleness=staleness or 0,
        max_lag=lag or 0,
        logs=_newest_logs(db, number),
        evaluations=tuple(e for e in read_evaluations(db) if is_shared(shared, e.incarnation, e.version)),
    )


def read_watermark(db: sqlite3.Connection) -> int:
    """The lowest step that is not committed."""
    return _reached(db, tuple(read_facts(db)))[2]


def _reached(db: sqlite3.Connection, facts: tuple[FactRow, ...]) -> tuple[int, int, int, tuple[int, ...]]:
    """The newest incarnation, its newest version, the lowest step that this lacks, and the steps above that it has."""
    begun = max((f.fact for f in facts if isinstance(f.fact, IncarnationFact)), key=_number, default=None)
    number = begun.number if begun is not None else 0
    position = begun.position if begun is not None else None
    last, steps, highest = db.execute(
        "SELECT MAX(version), TOTAL(step >= 0), MAX(step) FROM commits WHERE incarnation = ?", (number,)
    ).fetchone()
    low, above = (position.watermark, position.above) if position is not None else (0, ())
    low, above = committed_steps(low, above, int(steps), _steps_down(db, number, highest))
    return number, start_of(begun) if last is None else last, low, above


def _steps_down(db: sqlite3.Connection, incarnation: int, highest: int | None) -> Iterator[int]:
    """Yield the committed steps, highest first. There is no index of steps: each range of steps costs one scan."""
    if highest is None or highest < 0:
        return
    yield highest
    top, size = highest - 1, 4096
    while top >= 0:
        rows = db.execute(
            "SELECT step FROM commits WHERE incarnation = ? AND step BETWEEN ? AND ?",
            (incarnation, max(0, top - size + 1), top),
        ).fetchall()
        yield from sorted((step for (step,) in rows), reverse=True)
        top, size = top - size, 16 * size


def _newest_logs(db: sqlite3.Connection, incarnation: int) -> dict[str, float]:
    """The newest value of each logged name: read rows, newest first, until every set of names has been found."""
    missing = {number for (number,) in db.execute("SELECT id FROM names")}
    found: dict[str, float] = {}
    rows = db.execute("SELECT rowid, incarnation, names FROM logs ORDER BY rowid DESC")
    for rowid, of, names in rows:
        if of != incarnation or not missing:
            break
        if names in missing:
            missing.discard(names)
            text = db.execute("SELECT row FROM logs WHERE rowid = ?", (rowid,)).fetchone()[0]
            found = decode_values(text) | found
    return found


def _number(fact: IncarnationFact) -> int:
    return fact.number
