"""The durable generation of a log: each coordinator that opens the log raises it, and a lower one cannot write. Rule 7.

Both functions must be called inside a transaction that no other process can write beside (`BEGIN IMMEDIATE`).
"""

from __future__ import annotations

import sqlite3

from paceline.errors import DeposedError


def raise_generation(db: sqlite3.Connection) -> int:
    """Raise the durable generation by one and return it: from its commit on, every lower generation is refused."""
    generation = _durable(db) + 1
    db.execute("INSERT OR REPLACE INTO meta VALUES ('generation', ?)", (str(generation),))
    return generation


def refuse_lower(db: sqlite3.Connection, generation: int) -> None:
    """Refuse a write of `generation` if a newer coordinator has raised the durable generation since.

    Raises:
        DeposedError: a newer coordinator has taken over.
    """
    durable = _durable(db)
    if durable != generation:
        raise DeposedError(generation, durable)


def _durable(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM meta WHERE key = 'generation'").fetchone()
    return int(row[0]) if row else 0
