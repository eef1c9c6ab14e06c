"""The rows of a log on a storage: each file has the rows since the file before it.

A checkpoint outside of a run directory stands on these files, so that it can be resumed without the log itself. Rows
of a log are only ever appended, except choices of attempts: a new incarnation begins without them, so they are left
out.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from paceline.checkpoint.manifest import LogTip
from paceline.checkpoint.storage import Storage
from paceline.coordinator.tables import SCHEMA, TABLES, check_schema, read_or_name_damage
from paceline.core.effects import ChoiceFact
from paceline.errors import StateError

FOLDER = "log"
TIP = "log_tip"
"""The key of the log under which a coordinator keeps which rows are on the storage."""

_ROWS = 20_000  # rows of one table in one file at most: a file is built in memory
_META = ("generation", "notes", "written_by")
_NAME = re.compile(r"t\d{4,9}-\d{8}-[0-9a-f]{8}\.rows")

_COLUMNS = {
    "hypers": ("id", "value"),
    "names": ("id", "value"),
    "commits": (
        *("incarnation", "version", "step", "fences", "hyper", "scale", "pin", "staleness", "lag", "samples", "empty"),
        *("variants", "generation"),
    ),
    "logs": ("rowid", "incarnation", "version", "step", "names", "row"),
    "evaluations": ("rowid", "incarnation", "version", "step", "name", "row", "validator"),
    "facts": ("seq", "kind", "incarnation", "version", "generation", "row"),
}
"""The columns of each table. Rows are in the order of the first one, and of the first two for commits."""


class Reached(msgspec.Struct, frozen=True):
    """The tip of the files, and the key of the last row of each table that they have."""

    tip: LogTip | None = None
    rows: dict[str, tuple[int, int]] = {}
    number: int = 0


class _Part(msgspec.Struct, frozen=True):
    """One file: its rows by table, what the log holds besides rows, and the file before it."""

    schema: int
    previous: LogTip | None
    number: int
    meta: dict[str, str]
    rows: dict[str, list[tuple[Any, ...]]]
    last: dict[str, tuple[int, int]] = {}


def write_new_rows(storage: Storage, log: Path, reached: Reached, term: int) -> Reached:
    """Write the rows of `log` after `reached` to the storage; returns how far the storage has them now.

    Raises:
        StateError: the log cannot be read.
        OSError: the storage cannot be written.
    """
    with closing(_open(log)) as db, read_or_name_damage(log):
        db.execute("BEGIN")  # one moment of the log, even while the coordinator writes to it
        meta = {k: v for k, v in db.execute("SELECT key, value FROM meta") if k in _META}
        while (part := _next_part(db, reached, meta)) is not None:
            content = msgspec.msgpack.encode(part)
            name = f"t{term:04d}-{part.number:08d}-{secrets.token_hex(4)}.rows"
            with storage.create(f"{FOLDER}/{name}") as file:
                file.write(content)
            reached = Reached(LogTip(name, hashlib.sha256(content).hexdigest()), part.last, part.number)
    return reached


def _next_part(db: sqlite3.Connection, reached: Reached, meta: dict[str, str]) -> _Part | None:
    rows, last = {}, dict(reached.rows)
    for table in _COLUMNS:
        if found := _rows_after(db, table, last.get(table, (-1, -1))):
            rows[table] = found
            last[table] = (found[-1][0], found[-1][1] if table == "commits" else 0)
    if not rows and reached.tip is not None:
        return None
    return _Part(SCHEMA, reached.tip, reached.number + 1, meta, rows, last)


def _rows_after(db: sqlite3.Connection, table: str, key: tuple[int, int]) -> list[tuple[Any, ...]]:
    columns = _COLUMNS[table]
    parameters: tuple[int, ...]
    if table == "commits":
        where, parameters = "(incarnation, version) > (?, ?) ORDER BY incarnation, version", key
    else:
        # Only choices are ever removed, and they are left out: no later row has a number below one that was written.
        kept = f"kind != '{ChoiceFact.__name__}' AND " * (table == "facts")
        where, parameters = f"{kept}{columns[0]} > ? ORDER BY {columns[0]}", (key[0],)
    return db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE {where} LIMIT {_ROWS}", parameters).fetchall()


def restore_log(storage: Storage, tip: LogTip, log: Path) -> None:
    """Make the log `log`, which must not exist, from the files that lead to `tip`.

    The new log knows how far the storage has its rows.

    Raises:
        StateError: a file is missing, damaged or of another version of Paceline; no log is left behind.
    """
    if log.exists():
        raise StateError(f"{log} exists already")
    try:
        with closing(sqlite3.connect(log, isolation_level=None)) as db, read_or_name_damage(log):
            db.execute("BEGIN IMMEDIATE")
            for statement in TABLES:
                db.execute(statement)
            newest = _insert_all(db, storage, tip)
            reached = Reached(tip, newest.last, newest.number)
            meta = {**newest.meta, "schema": str(SCHEMA), TIP: msgspec.json.encode(reached).decode()}
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            db.execute("COMMIT")
    except BaseException:
        log.unlink(missing_ok=True)
        raise


def _insert_all(db: sqlite3.Connection, storage: Storage, tip: LogTip) -> _Part:
    """Insert the rows of all files; returns the newest file. Rows carry their keys, so their order does not matter."""
    newest = None
    for part in _parts(storage, tip):
        newest = newest or part
        for table, rows in part.rows.items():
            columns = _COLUMNS.get(table)
            if columns is None or any(len(row) != len(columns) for row in rows):
                raise StateError(f"a file of the log at {storage.url} has rows that are none of a log ({table[:40]!r})")
            marks = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
    assert newest is not None
    return newest


def _parts(storage: Storage, tip: LogTip) -> Iterator[_Part]:
    """The files that lead to `tip`, newest first."""
    at: LogTip | None = tip
    below = None
    while at is not None:
        part = _read(storage, at)
        if below is not None and part.number != below - 1:
            raise StateError(f"the files of the log at {storage.url} are not in their order: {at.name}")
        yield part
        at, below = part.previous, part.number


def _read(storage: Storage, tip: LogTip) -> _Part:
    if _NAME.fullmatch(tip.name) is None:
        raise StateError(f"{tip.name[:80]!r} is not the name of a file of a log")
    where = f"{FOLDER}/{tip.name} at {storage.url}"
    try:
        content = storage.read(f"{FOLDER}/{tip.name}")
    except OSError as error:
        raise StateError(f"{where} cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(content).hexdigest() != tip.sha256:
        raise StateError(f"{where} is damaged: its SHA-256 is not the one that was noted")
    try:
        part = msgspec.msgpack.decode(content, type=_Part)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StateError(f"{where} is damaged: {error}") from None
    if part.schema != SCHEMA:
        raise StateError(f"{where} has schema {part.schema}; this version of Paceline reads schema {SCHEMA}")
    return part


def _open(log: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(f"{log.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5.0)
    except sqlite3.Error as error:
        raise StateError(f"cannot read the log {log}: {error}") from error
    try:
        check_schema(db, log)
    except BaseException:
        db.close()
        raise
    return db
