"""The rows of a log on a storage: each file has the rows since the file before it.

A checkpoint outside of a run directory stands on these files, so that it can be resumed without the log itself. Rows
of a log are only ever appended, except choices of attempts: a new incarnation begins without them, so they are left
out.

A file never changes. A new file also takes the rows of the small files before it, which are then *retired*: only older
checkpoints stand on them. So a chain has few small files, and a row is written a few times at most.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from paceline.checkpoint.manifest import LogTip, parse_folder
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


class Link(msgspec.Struct, frozen=True):
    """One file of a chain: the key of the last row of each table up to it, its place in the chain, its own rows."""

    tip: LogTip
    rows: dict[str, tuple[int, int]]
    number: int
    count: int


class Retired(msgspec.Struct, frozen=True):
    """A file on which only checkpoints stand that are older than the folder `since`."""

    name: str
    since: str


class Reached(msgspec.Struct, frozen=True):
    """The tip of the files, and the key of the last row of each table that they have.

    `links` are the files of the chain, oldest first; a Paceline before 0.5 did not note them. `retired` are files that
    are to be removed.
    """

    tip: LogTip | None = None
    rows: dict[str, tuple[int, int]] = {}
    number: int = 0
    links: tuple[Link, ...] = ()
    retired: tuple[Retired, ...] = ()

    @property
    def chain(self) -> tuple[Link, ...]:
        """The files of the chain. Files that were not noted count as one that is full."""
        if self.links or self.tip is None:
            return self.links
        return (Link(self.tip, self.rows, self.number, _ROWS),)

    def at(self, links: Sequence[Link]) -> Reached:
        """The state in which the chain was `links`."""
        end = links[-1] if links else None
        found = Reached() if end is None else Reached(end.tip, end.rows, end.number, tuple(links))
        return msgspec.structs.replace(found, retired=self.retired)


class _Part(msgspec.Struct, frozen=True):
    """One file: its rows by table, what the log holds besides rows, and the file before it."""

    schema: int
    previous: LogTip | None
    number: int
    meta: dict[str, str]
    rows: dict[str, list[tuple[Any, ...]]]
    last: dict[str, tuple[int, int]] = {}

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(map(len, self.rows.values()))

    def link(self, tip: LogTip) -> Link:
        """This file, which is called `tip`, in a chain."""
        return Link(tip, self.last, self.number, self.count)


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
            kept = _kept(reached.chain, part.count)
            reached = reached.at(kept)
            part = _next_part(db, reached, meta) or part
            content = msgspec.msgpack.encode(part)
            name = f"t{term:04d}-{part.number:08d}-{secrets.token_hex(4)}.rows"
            with storage.create(f"{FOLDER}/{name}") as file:
                file.write(content)
            reached = reached.at([*kept, part.link(LogTip(name, hashlib.sha256(content).hexdigest()))])
    return reached


def _kept(chain: Sequence[Link], count: int) -> list[Link]:
    """The files that stay in the chain before a file with `count` new rows, which takes the rows of the others."""
    kept = list(chain)
    while kept and kept[-1].count <= 2 * count and kept[-1].count + count <= _ROWS:
        count += kept.pop().count
    return kept


def retire(before: Reached, after: Reached, since: str) -> Reached:
    """`after`, with the files noted that are no longer in its chain: the checkpoint in `since` does not need them."""
    gone = {link.tip.name for link in before.links} - {link.tip.name for link in after.links}
    return msgspec.structs.replace(after, retired=(*after.retired, *(Retired(name, since) for name in sorted(gone))))


def removable(durable: Reached, folders: Iterable[str]) -> list[str]:
    """The retired files on which none of the checkpoints in `folders` stands.

    `durable` is what the log says: a coordinator that is started again goes on from there.
    """
    there = [at for name in folders if (at := parse_folder(name)) is not None]
    found = []
    for file in durable.retired:
        since = parse_folder(file.since)
        if since is not None and all(at >= since for at in there):
            found.append(file.name)
    return found


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
            newest, links = _insert_all(db, storage, tip)
            reached = Reached().at(links)
            meta = {**newest.meta, "schema": str(SCHEMA), TIP: msgspec.json.encode(reached).decode()}
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            db.execute("COMMIT")
    except BaseException:
        log.unlink(missing_ok=True)
        raise


def _insert_all(db: sqlite3.Connection, storage: Storage, tip: LogTip) -> tuple[_Part, list[Link]]:
    """Insert the rows of all files; returns the newest file and the chain.

    Rows carry their keys, so their order does not matter.
    """
    newest, links = None, list[Link]()
    for part, at in _parts(storage, tip):
        newest = newest or part
        links.insert(0, part.link(at))
        for table, rows in part.rows.items():
            columns = _COLUMNS.get(table)
            if columns is None or any(len(row) != len(columns) for row in rows):
                raise StateError(f"a file of the log at {storage.url} has rows that are none of a log ({table[:40]!r})")
            marks = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)
    assert newest is not None
    return newest, links


def _parts(storage: Storage, tip: LogTip) -> Iterator[tuple[_Part, LogTip]]:
    """The files that lead to `tip`, newest first, with their names."""
    at: LogTip | None = tip
    below = None
    while at is not None:
        part = _read(storage, at)
        if below is not None and part.number != below - 1:
            raise StateError(f"the files of the log at {storage.url} are not in their order: {at.name}")
        yield part, at
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
