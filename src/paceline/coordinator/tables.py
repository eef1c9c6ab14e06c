"""Defines the SQL tables of a log, and decodes their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version as version_of
from pathlib import Path

import msgspec

from paceline.core.effects import AnyFact, EvaluationRow, FactRow, LogRow
from paceline.errors import StateError
from paceline.types import Commit, Fence, Hyper

SCHEMA = 2
TABLES = (
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

_fences = msgspec.msgpack.Decoder(tuple[Fence, ...])
_variants = msgspec.msgpack.Decoder(tuple[tuple[tuple[int, ...], tuple[Fence, ...]], ...])
_hyper = msgspec.msgpack.Decoder(Hyper)
_fact: msgspec.msgpack.Decoder[AnyFact] = msgspec.msgpack.Decoder(AnyFact)
_values = msgspec.json.Decoder(dict[str, float], strict=False)  # `plain` writes nan and inf as text
decode_fact, decode_values = _fact.decode, _values.decode


@contextmanager
def read_or_name_damage(path: Path) -> Iterator[None]:
    """Read from the log at `path` in the `with` block.

    Raises:
        StateError: the log is damaged: SQLite cannot read it, or it has rows that are none of a log.
    """
    try:
        yield
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise StateError(f"the log {path} is damaged: {error}") from error


def is_empty(db: sqlite3.Connection) -> bool:
    """Whether the database has no tables yet."""
    return db.execute("SELECT 1 FROM sqlite_master").fetchone() is None


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Check that `db` is a log with the schema of this version of Paceline.

    Raises:
        StateError: `db` is empty, damaged, not a log, or a log with another schema.
    """
    if is_empty(db):
        raise StateError(f"{path} is empty: no coordinator has written to it")
    try:
        meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('schema', 'written_by')").fetchall())
    except sqlite3.OperationalError as error:
        raise StateError(f"{path} is not the log of a run: {error}") from error
    except sqlite3.Error as error:
        raise StateError(f"the log {path} is damaged: {error}") from error
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
        if row is None:
            raise sqlite3.DataError(f"a commit names hyper-parameters {number}, which are not there")
        found = self[number] = _hyper.decode(row[0])
        return found


def read_commits(db: sqlite3.Connection, rest: str, parameters: tuple[int, ...]) -> Iterator[Commit]:
    """Yield commits, one by one; `rest` is the end of the SQL query: which commits, in which order."""
    hypers, fences, variants = _Hypers(db), _fences.decode, _variants.decode
    for row in db.execute(f"SELECT {_COMMIT} FROM commits {rest}", parameters):
        incarnation, version, step, raw, hyper, scale, pin, stale, lag, samples, empty, other = row
        used, by_servers = fences(raw), () if other is None else variants(other)
        yield Commit(
            incarnation, version, step, used, hypers[hyper], scale, pin != 0, stale, lag, samples, empty, by_servers
        )


def read_facts(db: sqlite3.Connection) -> Iterator[FactRow]:
    """Yield the facts in the order in which they were written."""
    for incarnation, version, raw in db.execute("SELECT incarnation, version, row FROM facts ORDER BY seq"):
        yield FactRow(incarnation, version, decode_fact(raw))


def read_evaluations(db: sqlite3.Connection) -> Iterator[EvaluationRow]:
    """Yield the results of validations in the order in which they were written."""
    rows = db.execute("SELECT incarnation, version, step, name, row, validator FROM evaluations ORDER BY rowid")
    for incarnation, version, step, name, text, validator in rows:
        yield EvaluationRow(incarnation, version, step, name, decode_values(text), validator)


def read_facts_after(db: sqlite3.Connection, seq: int) -> Iterator[tuple[int, FactRow]]:
    """Yield the facts after row `seq`, each with the number of its row."""
    rows = db.execute("SELECT seq, incarnation, version, row FROM facts WHERE seq > ? ORDER BY seq", (seq,))
    for number, incarnation, version, raw in rows:
        yield number, FactRow(incarnation, version, decode_fact(raw))


def read_evaluations_after(db: sqlite3.Connection, row: int) -> Iterator[tuple[int, EvaluationRow]]:
    """Yield the results of validations after row `row`, each with the number of its row."""
    columns = "rowid, incarnation, version, step, name, row, validator"
    for number, incarnation, version, step, name, text, validator in db.execute(
        f"SELECT {columns} FROM evaluations WHERE rowid > ? ORDER BY rowid", (row,)
    ):
        yield number, EvaluationRow(incarnation, version, step, name, decode_values(text), validator)


def read_logged_after(db: sqlite3.Connection, row: int, until: int | None) -> Iterator[tuple[int, LogRow]]:
    """Yield the values that steps logged, after row `row` up to `until`, each with the number of its row."""
    end = -1 if until is None else until
    for number, incarnation, version, step, text in db.execute(
        "SELECT rowid, incarnation, version, step, row FROM logs WHERE rowid > ? AND (? < 0 OR rowid <= ?) ORDER BY 1",
        (row, end, end),
    ):
        yield number, LogRow(incarnation, version, step, decode_values(text))
