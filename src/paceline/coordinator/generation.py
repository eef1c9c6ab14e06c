"""The generation in a log: each coordinator that opens the log raises it, and lower generations cannot write (rule 7).

Call both functions inside a `BEGIN IMMEDIATE` transaction, so that no other process writes at the same time.
"""

from __future__ import annotations

import sqlite3

from paceline.errors import DeposedError


def raise_generation(db: sqlite3.Connection) -> int:
    """Raise the generation by one and return it. Once the transaction is committed, lower generations are refused."""
    generation = _durable(db) + 1
    db.execute("INSERT OR REPLACE INTO meta VALUES ('generation', ?)", (str(generation),))
    return generation


IS_NEWEST = "(SELECT value FROM meta WHERE key = 'generation') = ?"
"""A condition of SQL: `?`, a generation as text, is the newest. A row that is inserted under it needs `refuse_lower`
only if it was not inserted."""


def refuse_lower(db: sqlite3.Connection, generation: int) -> None:
    """Refuse a write by a coordinator of `generation` if a newer coordinator has opened the log since.

    Raises:
        DeposedError: a newer coordinator has taken over.
    """
    durable = _durable(db)
    if durable != generation:
        raise DeposedError(generation, durable)


def _durable(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
    return int(row[0]) if row else 0
