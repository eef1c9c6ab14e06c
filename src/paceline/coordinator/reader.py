"""Reads the log of a run without writing to it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.coordinator.history import read_watermark
from paceline.coordinator.tables import (
    check_schema,
    is_empty,
    read_commits,
    read_evaluations,
    read_evaluations_after,
    read_facts,
    read_facts_after,
    read_logged_after,
    read_or_name_damage,
)
from paceline.core.effects import EvaluationRow, FactRow, LogRow
from paceline.errors import StateError
from paceline.types import Commit


class LogReader:
    """Reads a run's log without changing it: while a coordinator writes it, after a kill, or in a read-only directory.

    Use it in a `with` statement, or call `close`. Its methods raise StateError if the log is damaged.
    """

    def __init__(self, path: Path) -> None:
        """Open the log.

        Raises:
            StateError: there is no log, or this version of Paceline cannot read it.
        """
        self._path = path
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
            check_schema(self._db, path)
        except StateError:
            self.close()
            raise

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads inside the `with` block see the log at one moment, even while the run writes to it."""
        with read_or_name_damage(self._path):
            self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    def commits(self) -> list[Commit]:
        """All commits, ordered by incarnation and version."""
        return list(self.each_commit())

    def each_commit(self) -> Iterator[Commit]:
        """Yield what `commits` returns, one by one: a long log need not fit into memory."""
        with read_or_name_damage(self._path):
            yield from read_commits(self._db, "ORDER BY incarnation, version", ())

    def commit(self, incarnation: int, version: int) -> Commit | None:
        """The commit that made `version` in `incarnation`; None if there is none."""
        with read_or_name_damage(self._path):
            found = read_commits(self._db, "WHERE incarnation = ? AND version = ?", (incarnation, version))
            return next(iter(found), None)

    def facts(self) -> list[FactRow]:
        """All facts in the order in which they were written. The log drops choices of attempts of committed steps."""
        with read_or_name_damage(self._path):
            return list(read_facts(self._db))

    def facts_after(self, seq: int) -> list[tuple[int, FactRow]]:
        """The facts after row `seq`, each with the number of its row."""
        with read_or_name_damage(self._path):
            return list(read_facts_after(self._db, seq))

    def evaluations_after(self, row: int) -> list[tuple[int, EvaluationRow]]:
        """The results of validations after row `row`, each with the number of its row."""
        with read_or_name_damage(self._path):
            return list(read_evaluations_after(self._db, row))

    def logged_after(self, row: int, until: int | None = None) -> Iterator[tuple[int, LogRow]]:
        """Yield the values that steps logged, after row `row` up to `until`, each with the number of its row."""
        with read_or_name_damage(self._path):
            yield from read_logged_after(self._db, row, until)

    def evaluations(self) -> list[EvaluationRow]:
        """All results of validations, in the order in which they were written."""
        with read_or_name_damage(self._path):
            return list(read_evaluations(self._db))

    def watermark(self) -> int:
        """The lowest step that is not committed."""
        with read_or_name_damage(self._path):
            return read_watermark(self._db)

    def get(self, key: str) -> str | None:
        """The text that the log holds for `key`, for example the summary of the run; None if there is none."""
        with read_or_name_damage(self._path):
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
        is_empty(db)
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
