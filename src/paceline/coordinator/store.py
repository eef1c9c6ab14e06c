"""The durable log of a run: SQLite in the run directory, written only by the newest generation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from paceline.coordinator.numbers import plain
from paceline.core.effects import EvaluationRow, LogRow, PlacementRow, Write
from paceline.errors import DeposedError
from paceline.types import Commit, Fence, Hyper, Segment

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS segments (number INTEGER PRIMARY KEY, step INTEGER NOT NULL, row BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS placements (epoch INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS hypers (id INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS commits (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL, fences BLOB NOT NULL,
    hyper INTEGER NOT NULL, scale REAL NOT NULL, pin INTEGER NOT NULL, staleness INTEGER NOT NULL,
    lag INTEGER NOT NULL, generation INTEGER NOT NULL, PRIMARY KEY (incarnation, version)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (version INTEGER NOT NULL, step INTEGER NOT NULL, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS evaluations (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL,
    row TEXT NOT NULL);
"""


class LogStore:
    """The log of one run. Each call of `write` is one transaction that survives the death of this process.

    A power cut may take the newest transactions with it (SQLite's WAL is synced at checkpoints), never their order.
    """

    def __init__(self, path: Path) -> None:
        """Open the log and raise its generation; from now on every lower one is refused."""
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA)
        self._db.execute("BEGIN IMMEDIATE")
        self.generation = self._durable_generation() + 1
        self._set("generation", str(self.generation))
        self._db.execute("COMMIT")
        self._hypers: dict[str, int] = {}

    def _durable_generation(self) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
        return int(row[0]) if row else 0

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def write(self, writes: Iterable[Write]) -> None:
        """Make rows durable, together.

        Raises:
            DeposedError: a newer coordinator has taken over; nothing was written.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            durable = self._durable_generation()
            if durable != self.generation:
                raise DeposedError(self.generation, durable)
            for write in writes:
                self._insert(write)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _insert(self, write: Write) -> None:
        match write.row:
            case Commit() as c:
                self._db.execute(
                    "INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        c.incarnation,
                        c.version,
                        c.step,
                        msgspec.msgpack.encode(c.fences),
                        self._hyper(msgspec.json.encode(c.hyper).decode()),
                        c.scale,
                        c.pin,
                        c.staleness,
                        c.lag,
                        self.generation,
                    ),
                )
            case Segment() as segment:
                self._db.execute(
                    "INSERT INTO segments (step, row) VALUES (?, ?)",
                    (segment.step, msgspec.msgpack.encode(segment)),
                )
            case LogRow(version, step, values):
                text = msgspec.json.encode(plain(values)).decode()
                self._db.execute("INSERT INTO logs VALUES (?, ?, ?)", (version, step, text))
            case EvaluationRow(incarnation, version, step, name, values):
                text = msgspec.json.encode(plain(values)).decode()
                self._db.execute(
                    "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?)", (incarnation, version, step, name, text)
                )
            case PlacementRow(placement):
                self._db.execute(
                    "INSERT INTO placements VALUES (?, ?)",
                    (placement.epoch, msgspec.msgpack.encode(placement)),
                )

    def _hyper(self, text: str) -> int:
        """Hyper-parameters change rarely: a commit stores their number."""
        known = self._hypers.get(text)
        if known is None:
            self._db.execute("INSERT OR IGNORE INTO hypers (value) VALUES (?)", (text,))
            known = int(self._db.execute("SELECT id FROM hypers WHERE value = ?", (text,)).fetchone()[0])
            if len(self._hypers) > 1000:
                self._hypers.clear()
            self._hypers[text] = known
        return known

    def put(self, key: str, value: str) -> None:
        """Remember a fact about the run, such as its summary."""
        self._db.execute("BEGIN IMMEDIATE")
        durable = self._durable_generation()
        if durable != self.generation:
            self._db.execute("ROLLBACK")
            raise DeposedError(self.generation, durable)
        self._set(key, value)
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file; the WAL is folded in."""
        self._db.close()


class LogReader:
    """Reads a run's log without disturbing it: for status, tests and the audit."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)

    def commits(self) -> list[Commit]:
        """All commits, in order."""
        rows = self._db.execute(
            "SELECT incarnation, version, step, fences, h.value, scale, pin, staleness, lag"
            " FROM commits JOIN hypers h ON h.id = commits.hyper ORDER BY incarnation, version"
        ).fetchall()
        fences = msgspec.msgpack.Decoder(tuple[Fence, ...])
        hyper = msgspec.json.Decoder(Hyper)
        return [
            Commit(inc, version, step, fences.decode(raw), hyper.decode(text), scale, bool(pin), staleness, lag)
            for inc, version, step, raw, text, scale, pin, staleness, lag in rows
        ]

    def get(self, key: str) -> str | None:
        """A fact about the run."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()
