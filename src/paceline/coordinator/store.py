"""The durable log of a run: SQLite in the run directory, written only by the newest generation."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from paceline.coordinator.numbers import plain
from paceline.core.effects import (
    AnyFact,
    ChoiceFact,
    EvaluationRow,
    FactRow,
    History,
    IncarnationFact,
    LogRow,
    Write,
)
from paceline.core.lineage import committed_steps, start_of
from paceline.errors import DeposedError, StateError
from paceline.types import Commit, Fence, Hyper

SCHEMA = 2
TAIL = 4096
"""Newest commits that a restarted coordinator gets back whole."""

_TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE hypers (id INTEGER PRIMARY KEY, value BLOB NOT NULL UNIQUE)",
    "CREATE TABLE names (id INTEGER PRIMARY KEY, value BLOB NOT NULL UNIQUE)",
    "CREATE TABLE commits (incarnation INTEGER NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL,"
    " fences BLOB NOT NULL, hyper INTEGER NOT NULL, scale REAL NOT NULL, pin INTEGER NOT NULL,"
    " staleness INTEGER NOT NULL, lag INTEGER NOT NULL, samples REAL NOT NULL, empty INTEGER NOT NULL, variants BLOB,"
    " generation INTEGER NOT NULL, PRIMARY KEY (incarnation, version)) WITHOUT ROWID",
    "CREATE TABLE logs (incarnation INTEGER NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL,"
    " names INTEGER NOT NULL, row TEXT NOT NULL)",
    "CREATE TABLE evaluations (incarnation INTEGER NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL,"
    " name TEXT NOT NULL, row TEXT NOT NULL, validator INTEGER NOT NULL)",
    "CREATE TABLE facts (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, incarnation INTEGER NOT NULL,"
    " version INTEGER NOT NULL, generation INTEGER NOT NULL, row BLOB NOT NULL)",
)
_COMMIT = "incarnation, version, step, fences, hyper, scale, pin, staleness, lag, samples, empty, variants"
_CHOICE = ChoiceFact.__name__

_pack = msgspec.msgpack.encode
_fences = msgspec.msgpack.Decoder(tuple[Fence, ...])
_variants = msgspec.msgpack.Decoder(tuple[tuple[tuple[int, ...], tuple[Fence, ...]], ...])
_hyper = msgspec.msgpack.Decoder(Hyper)
_fact: msgspec.msgpack.Decoder[AnyFact] = msgspec.msgpack.Decoder(AnyFact)
_values = msgspec.json.Decoder(dict[str, float], strict=False)  # `plain` writes nan and inf as text


def sync_log(path: Path) -> None:
    """Bring every transaction that is in the log at `path` to the disk. May be called from any thread.

    Only the WAL and the directory are synced. SQLite itself syncs the database file before it lets go of the part of
    the WAL that it folded in, and that file must not be opened here: closing any descriptor of it would drop all locks
    that this process holds on it (POSIX), and another process could then remove the WAL while it is in use.

    Raises:
        OSError: the medium is full or gone.
    """
    for name in (path.with_name(f"{path.name}-wal"), path.parent):
        try:
            descriptor = os.open(name, os.O_RDONLY)
        except FileNotFoundError:  # the log has been closed: its WAL is folded in, and synced
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class LogStore:
    """The log of one run. Each call of `write` is one transaction that survives the death of this process.

    A power cut may take the newest transactions with it, never their order; what was there when `sync_log` was called
    survives that too.
    """

    def __init__(self, path: Path) -> None:
        """Open the log and raise its generation; from now on every lower one is refused.

        Raises:
            StateError: the file is not a log, or one of another version of Paceline.
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
        except sqlite3.Error as error:
            self._db.close()
            raise StateError(f"cannot open the log {path}: {error}") from error
        except StateError:
            self._db.close()
            raise

    def _open(self) -> None:
        if not _is_empty(self._db):
            _check_schema(self._db, self.path)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("BEGIN IMMEDIATE")
        if _is_empty(self._db):
            for statement in _TABLES:
                self._db.execute(statement)
            self._set("schema", str(SCHEMA))
        self._set("written_by", version_of("paceline"))
        self.generation = self._durable_generation() + 1
        self._set("generation", str(self.generation))
        self._db.execute("COMMIT")
        self._find_choices()

    def _durable_generation(self) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
        return int(row[0]) if row else 0

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def write(self, writes: Iterable[Write]) -> None:
        """Make rows durable, together.

        Raises:
            DeposedError: a newer coordinator has taken over; nothing was written.
            StateError: the disk is full, or the file is gone; nothing was written.
        """
        try:
            self._begin()
            for write in writes:
                self._insert(write)
            self._db.execute("COMMIT")
        except BaseException as error:
            self._undo(error)
            raise

    def put(self, key: str, value: str) -> None:
        """Remember something about the run, such as its summary.

        Raises:
            StateError: as `write`.
        """
        try:
            self._begin()
            self._set(key, value)
            self._db.execute("COMMIT")
        except BaseException as error:
            self._undo(error)
            raise

    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        durable = self._durable_generation()
        if durable != self.generation:
            raise DeposedError(self.generation, durable)

    def _undo(self, error: BaseException) -> None:
        """Nothing of the transaction stays, here either; an error of SQLite gets its name in our tree."""
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._ids.clear()
            self._find_choices()
        if isinstance(error, sqlite3.Error):
            raise StateError(f"cannot write to the log {self.path}: {error}") from error

    def _insert(self, write: Write) -> None:
        match write.row:
            case Commit() as c:
                self._db.execute(
                    "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        c.incarnation,
                        c.version,
                        c.step,
                        _pack(c.fences),
                        self._id("hypers", _pack(c.hyper)),
                        c.scale,
                        c.pin,
                        c.staleness,
                        c.lag,
                        c.samples,
                        c.empty,
                        _pack(c.variants) if c.variants else None,
                        self.generation,
                    ),
                )
                for seq in self._choices.pop(c.step, ()):
                    self._db.execute("DELETE FROM facts WHERE seq = ?", (seq,))
            case LogRow(incarnation, version, step, values):
                names = self._id("names", _pack(list(values)))
                text = msgspec.json.encode(plain(values)).decode()
                self._db.execute("INSERT INTO logs VALUES (?, ?, ?, ?, ?)", (incarnation, version, step, names, text))
            case EvaluationRow(incarnation, version, step, name, values, validator):
                text = msgspec.json.encode(plain(values)).decode()
                row = (incarnation, version, step, name, text, validator)
                self._db.execute("INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?)", row)
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
        """Choices of attempts, by step: there may be many, and they are of no use once their step is committed."""
        self._choices.clear()
        for seq, raw in self._db.execute("SELECT seq, row FROM facts WHERE kind = ?", (_CHOICE,)):
            fact = _fact.decode(raw)
            assert isinstance(fact, ChoiceFact)
            self._choices.setdefault(fact.sealed.step, []).append(seq)

    def _id(self, table: str, value: bytes) -> int:
        """Hyper-parameters change rarely, and so do the names that are logged: a row stores their number."""
        known = self._ids.get((table, value))
        if known is None:
            self._db.execute(f"INSERT OR IGNORE INTO {table} (value) VALUES (?)", (value,))
            known = int(self._db.execute(f"SELECT id FROM {table} WHERE value = ?", (value,)).fetchone()[0])
            if len(self._ids) > 1000:
                self._ids.clear()
            self._ids[table, value] = known
        return known

    def history(self) -> History:
        """What the runs of this job so far have left, for a coordinator that starts."""
        facts = tuple(_read_facts(self._db))
        begun = max((f.fact for f in facts if isinstance(f.fact, IncarnationFact)), key=_number, default=None)
        number = begun.number if begun is not None else 0
        position = begun.position if begun is not None else None
        last, steps, highest, samples, empty, staleness, lag = self._db.execute(
            "SELECT MAX(version), TOTAL(step >= 0), MAX(step), TOTAL(samples), TOTAL(empty), MAX(staleness), MAX(lag)"
            " FROM commits WHERE incarnation = ?",
            (number,),
        ).fetchone()
        low, above = (position.watermark, position.above) if position is not None else (0, ())
        low, above = committed_steps(low, above, int(steps), self._steps_down(number, highest))
        tail = _read_commits(self._db, "WHERE incarnation = ? ORDER BY version DESC LIMIT ?", (number, TAIL))
        return History(
            facts=facts,
            incarnation=number,
            version=start_of(begun) if last is None else last,
            watermark=low,
            above=above,
            tail=tuple(reversed(list(tail))),
            samples=samples,
            empty=int(empty),
            max_staleness=staleness or 0,
            max_lag=lag or 0,
            logs=self._newest_logs(number),
            evaluations=tuple(e for e in _read_evaluations(self._db) if e.incarnation == number),
        )

    def _steps_down(self, incarnation: int, highest: int | None) -> Iterator[int]:
        """Committed steps, highest first. There is no index of steps: each range of them is one scan."""
        if highest is None or highest < 0:
            return
        yield highest
        top, size = highest - 1, 4096
        while top >= 0:
            rows = self._db.execute(
                "SELECT step FROM commits WHERE incarnation = ? AND step BETWEEN ? AND ?",
                (incarnation, max(0, top - size + 1), top),
            ).fetchall()
            yield from sorted((step for (step,) in rows), reverse=True)
            top, size = top - size, 16 * size

    def _newest_logs(self, incarnation: int) -> dict[str, float]:
        """Going back, until every set of names that was ever logged has been met."""
        missing = {number for (number,) in self._db.execute("SELECT id FROM names")}
        found: dict[str, float] = {}
        rows = self._db.execute("SELECT rowid, incarnation, names FROM logs ORDER BY rowid DESC")
        for rowid, of, names in rows:
            if of != incarnation or not missing:
                break
            if names in missing:
                missing.discard(names)
                text = self._db.execute("SELECT row FROM logs WHERE rowid = ?", (rowid,)).fetchone()[0]
                found = _values.decode(text) | found
        return found

    def close(self) -> None:
        """Close the file; the WAL is folded in."""
        self._db.close()


class LogReader:
    """Reads a run's log without disturbing it, whether it is being written, was left by a kill, or cannot be written.

    A context manager; `close` it otherwise.
    """

    def __init__(self, path: Path) -> None:
        """Open the log.

        Raises:
            StateError: there is none, or it is of another version of Paceline.
        """
        self._copy: TemporaryDirectory[str] | None = None
        if not path.is_file():
            raise StateError(f"there is no log at {path}: no coordinator has run there")
        try:
            self._db = _connect(path)
        except sqlite3.Error as error:
            if os.access(path.parent, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise StateError(f"cannot read the log {path}: {error}") from error
            # A log with a WAL needs a shared index beside it, which cannot be made in a read-only directory.
            self._copy = TemporaryDirectory(prefix="paceline-log-")
            self._db = _connect_copy(path, self._copy)
        try:
            _check_schema(self._db, path)
        except StateError:
            self.close()
            raise

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that is read in the block is of one moment, though the run goes on."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def commits(self) -> list[Commit]:
        """All commits, by incarnation and version."""
        return list(self.each_commit())

    def each_commit(self) -> Iterator[Commit]:
        """The same one by one: a long log need not fit into memory."""
        return _read_commits(self._db, "ORDER BY incarnation, version", ())

    def facts(self) -> list[FactRow]:
        """All facts, in the order in which they were written, but choices of attempts whose step is committed."""
        return list(_read_facts(self._db))

    def evaluations(self) -> list[EvaluationRow]:
        """All results of validations, in the order in which they were written."""
        return list(_read_evaluations(self._db))

    def get(self, key: str) -> str | None:
        """Something about the run."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        self._db.close()
        if self._copy is not None:
            self._copy.cleanup()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5.0)
    try:
        _is_empty(db)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _connect_copy(path: Path, copy: TemporaryDirectory[str]) -> sqlite3.Connection:
    try:
        for name in (path.name, f"{path.name}-wal"):
            if (path.parent / name).exists():
                shutil.copyfile(path.parent / name, Path(copy.name, name))
        return _connect(Path(copy.name, path.name))
    except (OSError, sqlite3.Error) as error:
        copy.cleanup()
        raise StateError(f"cannot read the log {path}: {error}") from error


def _is_empty(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    if _is_empty(db):
        raise StateError(f"{path} is empty: no coordinator has begun there")
    try:
        meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('schema', 'written_by')").fetchall())
    except sqlite3.Error as error:
        raise StateError(f"{path} is not the log of a run: {error}") from error
    if meta.get("schema") != str(SCHEMA):
        raise StateError(
            f"{path} was written by Paceline {meta.get('written_by', '0.1.0 or older')} (schema "
            f"{meta.get('schema', 1)}); this is Paceline {version_of('paceline')} (schema {SCHEMA}): use that version, "
            "or start a new run"
        )


class _Hypers(dict[int, Hyper]):
    """Hyper-parameters by number, each decoded once."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__()
        self._db = db

    def __missing__(self, number: int) -> Hyper:
        row = self._db.execute("SELECT value FROM hypers WHERE id = ?", (number,)).fetchone()
        found = self[number] = _hyper.decode(row[0])
        return found


def _read_commits(db: sqlite3.Connection, rest: str, parameters: tuple[int, ...]) -> Iterator[Commit]:
    hypers, fences, variants = _Hypers(db), _fences.decode, _variants.decode
    for row in db.execute(f"SELECT {_COMMIT} FROM commits {rest}", parameters):
        incarnation, version, step, raw, hyper, scale, pin, stale, lag, samples, empty, other = row
        used, by_servers = fences(raw), () if other is None else variants(other)
        yield Commit(
            incarnation, version, step, used, hypers[hyper], scale, pin != 0, stale, lag, samples, empty, by_servers
        )


def _read_facts(db: sqlite3.Connection) -> Iterator[FactRow]:
    for incarnation, version, raw in db.execute("SELECT incarnation, version, row FROM facts ORDER BY seq"):
        yield FactRow(incarnation, version, _fact.decode(raw))


def _read_evaluations(db: sqlite3.Connection) -> Iterator[EvaluationRow]:
    rows = db.execute("SELECT incarnation, version, step, name, row, validator FROM evaluations ORDER BY rowid")
    for incarnation, version, step, name, text, validator in rows:
        yield EvaluationRow(incarnation, version, step, name, _values.decode(text), validator)


def _number(fact: IncarnationFact) -> int:
    return fact.number
