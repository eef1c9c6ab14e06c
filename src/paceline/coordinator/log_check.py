"""Checks whether a run that has ended can go on with its log. Changes no file."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from paceline.coordinator.tables import check_schema, is_empty, read_facts, read_or_name_damage
from paceline.core.effects import IncarnationFact
from paceline.core.lineage import lineage
from paceline.errors import StateError

_CHECK_S = 5.0  # seconds after which SQLite's check of the file is given up: a log may have gigabytes
_INSTRUCTIONS = 100_000  # instructions of SQLite's machine between two looks at the clock


@dataclass(frozen=True, slots=True)
class LogCheck:
    """What `check_log` found wrong, in words; "" if nothing.

    `blank` means that the log is missing or has no content. A run without checkpoints can begin with such a log.
    """

    problem: str = ""
    blank: bool = False


def check_log(path: Path, checkpoint: tuple[int, int] | None = None, *, check_s: float = _CHECK_S) -> LogCheck:
    """Check that the log at `path` is undamaged, and has the (incarnation, version) of `checkpoint`.

    The run must not be running. SQLite checks the whole file, but ends after about `check_s` seconds; what it has not
    read until then counts as undamaged.

    Raises:
        StateError: another version of Paceline has written the log.
    """
    if not path.exists():
        return LogCheck(f"the log {path} is missing", blank=True)
    try:
        with closing(_connect(path)) as db:
            if is_empty(db):
                return LogCheck(f"the log {path} is empty", blank=True)
            if damage := _damage(db, check_s):
                return LogCheck(f"the log {path} is damaged: {damage}")
            check_schema(db, path)
            return LogCheck("" if checkpoint is None else _lacks(db, path, *checkpoint))
    except sqlite3.DatabaseError as error:
        return LogCheck(f"the log {path} is damaged: {error}")


def _connect(path: Path) -> sqlite3.Connection:
    """Open the log for reading. Without a WAL beside it no other file is needed, and SQLite shall make none."""
    wal = path.with_name(f"{path.name}-wal")
    unchanging = "" if wal.exists() and wal.stat().st_size else "&immutable=1"
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{unchanging}", uri=True, isolation_level=None)


def _damage(db: sqlite3.Connection, check_s: float) -> str:
    """What SQLite's own check finds, as one line; "" if it finds nothing in time."""
    deadline = time.monotonic() + check_s
    db.set_progress_handler(lambda: time.monotonic() > deadline, _INSTRUCTIONS)
    try:
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        if time.monotonic() > deadline:
            return ""
        raise
    finally:
        db.set_progress_handler(None, 0)
    return "" if found == "ok" else " ".join(str(found).removeprefix("*** in database main ***").split())


def _lacks(db: sqlite3.Connection, path: Path, incarnation: int, version: int) -> str:
    """The problem that the log does not have `version` of `incarnation`; "" if it has."""
    try:
        with read_or_name_damage(path):
            begun = [row.fact for row in read_facts(db) if isinstance(row.fact, IncarnationFact)]
            last = lineage(begun, incarnation, version)[-1]
    except StateError as error:
        return str(error)
    query = "SELECT COUNT(*), MAX(version) FROM commits WHERE incarnation = ? AND version BETWEEN ? AND ?"
    found, newest = db.execute(query, (last.incarnation, last.first, version)).fetchone()
    if found == version - last.first + 1:
        return ""
    if newest == version:
        return f"the log {path} lacks {version - last.first + 1 - found} of its commits"
    ends = "has no commit" if newest is None else f"ends at version {newest}"
    return f"the log {path} {ends}, but the newest checkpoint is version {version}"
