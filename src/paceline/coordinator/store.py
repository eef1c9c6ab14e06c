"""The durable log of a run: SQLite in the run directory, written only by the newest generation."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version as version_of
from pathlib import Path

import msgspec

from paceline.coordinator.generation import IS_NEWEST, raise_generation, refuse_lower
from paceline.coordinator.history import read_history
from paceline.coordinator.json_numbers import plain
from paceline.coordinator.tables import SCHEMA, TABLES, check_schema, decode_fact, is_empty, read_or_name_damage
from paceline.core.effects import AnyFact, ChoiceFact, EvaluationRow, FactRow, History, IncarnationFact, LogRow, Write
from paceline.errors import StateError
from paceline.types import Commit

_CHOICE = ChoiceFact.__name__
_COLUMNS = ", ".join("?" * 13)
_INSERT = f"INSERT INTO commits VALUES ({_COLUMNS})"
_INSERT_ALONE = f"INSERT INTO commits SELECT {_COLUMNS} WHERE {IS_NEWEST}"

_pack = msgspec.msgpack.encode


def sync_log(path: Path) -> None:
    """Sync every transaction in the log at `path` to the disk. May be called from any thread.

    Only the WAL and the directory are synced. SQLite itself syncs the database file before it overwrites the part
    of the WAL that it has copied there. The database file must not be opened here: closing any descriptor of it would
    drop all locks that this process holds on it (POSIX), and another process could then remove the WAL during use.

    Raises:
        OSError: the disk is full or no longer there.
    """
    for name in (path.with_name(f"{path.name}-wal"), path.parent):
        try:
            descriptor = os.open(name, os.O_RDONLY)
        except FileNotFoundError:  # the log is closed: SQLite has copied its WAL into the file and synced it
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class LogStore:
    """The log of one run. Each call of `write` is one transaction that survives the death of this process.

    After a power cut the newest transactions may be missing, but never one that is older than a remaining one.
    Transactions that were in the log when `sync_log` was called survive a power cut.
    """

    def __init__(self, path: Path) -> None:
        """Open the log and raise its generation; from now on lower generations cannot write to it.

        Raises:
            StateError: the file is not a log, or this version of Paceline cannot read it.
        """
        self.path = path
        self._ids: dict[tuple[str, bytes], int] = {}
        self._choices: dict[int, list[int]] = {}
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        except sqlite3.Error as error:
            raise StateError(f"cannot open the log {path}: {error}") from error
        try:
            self._open()
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            self._db.close()
            raise StateError(f"cannot open the log {path}: {error}") from error
        except StateError:
            self._db.close()
            raise

    def _open(self) -> None:
        if not is_empty(self._db):
            check_schema(self._db, self.path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("BEGIN IMMEDIATE")
        if is_empty(self._db):
            for statement in TABLES:
                self._db.execute(statement)
            self._set("schema", str(SCHEMA))
        self._set("written_by", version_of("paceline"))
        self.generation = raise_generation(self._db)
        self._db.execute("COMMIT")
        self._find_choices()

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def write(self, writes: Iterable[Write]) -> None:
        """Write rows durably in one transaction: all of them or none.

        Raises:
            DeposedError: a newer coordinator has taken over; nothing was written.
            StateError: the disk is full, or the file is gone; nothing was written.
        """
        rows = [write.row for write in writes]
        try:
            if len(rows) == 1 and type(rows[0]) is Commit and rows[0].step not in self._choices:
                self._insert_alone(rows[0])
                return
            self._begin()
            for row in rows:
                self._insert(row)
            self._db.execute("COMMIT")
        except BaseException as error:
            self._undo(error)
            raise

    def _insert_alone(self, commit: Commit) -> None:
        """Insert a commit as the only row of its transaction: in one statement, which also checks the generation."""
        hyper = _pack(commit.hyper)
        if ("hypers", hyper) in self._ids:
            cursor = self._db.execute(_INSERT_ALONE, (*self._values(commit, hyper), str(self.generation)))
            if cursor.rowcount == 1:
                return
        self._begin()
        self._insert(commit)
        self._db.execute("COMMIT")

    def put(self, key: str, value: str) -> None:
        """Store `value` durably under `key`, for example the summary of the run.

        Raises:
            StateError: for the same reasons as in `write`.
        """
        try:
            self._begin()
            self._set(key, value)
            self._db.execute("COMMIT")
        except BaseException as error:
            self._undo(error)
            raise

    def last_rows(self) -> tuple[int, int, int]:
        """The numbers of the last rows of facts, logged values and evaluations; 0 for none."""
        found = [
            int(self._db.execute(f"SELECT MAX({key}) FROM {table}").fetchone()[0] or 0)
            for table, key in (("facts", "seq"), ("logs", "rowid"), ("evaluations", "rowid"))
        ]
        return found[0], found[1], found[2]

    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        refuse_lower(self._db, self.generation)

    def _undo(self, error: BaseException) -> None:
        """Roll the transaction back, in this object too; raise an error of SQLite as a `StateError`."""
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._ids.clear()
            self._find_choices()
        if isinstance(error, sqlite3.Error):
            raise StateError(f"cannot write to the log {self.path}: {error}") from error

    def _values(self, c: Commit, hyper: bytes) -> tuple[int | float | bytes | None, ...]:
        """The columns of a commit, whose hyper-parameters are packed as `hyper`."""
        return (
            c.incarnation,
            c.version,
            c.step,
            _pack(c.fences),
            self._id("hypers", hyper),
            c.scale,
            c.pin,
            c.staleness,
            c.lag,
            c.samples,
            c.empty,
            _pack(c.variants) if c.variants else None,
            self.generation,
        )

    def _insert(self, row: Commit | LogRow | EvaluationRow | FactRow) -> None:
        match row:
            case Commit():
                self._db.execute(_INSERT, self._values(row, _pack(row.hyper)))
                for seq in self._choices.pop(row.step, ()):
                    self._db.execute("DELETE FROM facts WHERE seq = ?", (seq,))
            case LogRow(incarnation, version, step, values):
                names = self._id("names", _pack(list(values)))
                text = msgspec.json.encode(plain(values)).decode()
                self._db.execute("INSERT INTO logs VALUES (?, ?, ?, ?, ?)", (incarnation, version, step, names, text))
            case EvaluationRow(incarnation, version, step, name, values, validator):
                text = msgspec.json.encode(plain(values)).decode()
                columns = (incarnation, version, step, name, text, validator)
                self._db.execute("INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?)", columns)
            case FactRow(incarnation, version, fact):
                self._insert_fact(incarnation, version, fact)

    def _insert_fact(self, incarnation: int, version: int, fact: AnyFact) -> None:
        if isinstance(fact, IncarnationFact):
            self._db.execute("DELETE FROM facts WHERE kind = ?", (_CHOICE,))
            self._choices.clear()
        row = (type(fact).__name__, incarnation, version, self.generation, _pack(fact))
        seq = self._db.execute(
            "INSERT INTO facts (kind, incarnation, version, generation, row) VALUES (?, ?, ?, ?, ?)", row
        ).lastrowid
        if isinstance(fact, ChoiceFact):
            assert seq is not None
            self._choices.setdefault(fact.sealed.step, []).append(seq)

    def _find_choices(self) -> None:
        """Find the rows of choices of attempts, by step: `write` deletes them when their step is committed."""
        self._choices.clear()
        for seq, raw in self._db.execute("SELECT seq, row FROM facts WHERE kind = ?", (_CHOICE,)):
            fact = decode_fact(raw)
            assert isinstance(fact, ChoiceFact)
            self._choices.setdefault(fact.sealed.step, []).append(seq)

    def _id(self, table: str, value: bytes) -> int:
        """The number of `value` in `table`. Hyper-parameters and logged names change rarely: rows store numbers."""
        known = self._ids.get((table, value))
        if known is None:
            self._db.execute(f"INSERT OR IGNORE INTO {table} (value) VALUES (?)", (value,))
            known = int(self._db.execute(f"SELECT id FROM {table} WHERE value = ?", (value,)).fetchone()[0])
            if len(self._ids) > 1000:
                self._ids.clear()
            self._ids[table, value] = known
        return known

    def history(self) -> History:
        """Read what earlier coordinators of this job have written, for a coordinator that starts.

        Raises:
            StateError: the log is damaged.
        """
        with read_or_name_damage(self.path):
            return read_history(self._db)

    def close(self) -> None:
        """Close the file; SQLite then copies the WAL into it, unless another connection is open."""
        self._db.close()
