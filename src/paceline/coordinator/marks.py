"""Marks in the log: at what time of day rows were written, and how fast workers were then. For records only."""

from __future__ import annotations

import time

from paceline.coordinator.store import LogStore
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.effects import FactRow, MarkFact, Write

_FIRST_S, _MOST_S = 0.5, 10.0  # seconds between two marks: few at first, so that a short run has some
_PART = 60.0  # a mark after so many parts of the time so far


class Marks:
    """Writes a mark from time to time, if something was written since the last one."""

    def __init__(self, log: LogStore, core: CoordinatorCore, now: float) -> None:
        self._log = log
        self._core = core
        self._began = now
        self._next = now
        self._seen: tuple[int, int, int] | None = None

    def tick(self, now: float, *, last: bool = False) -> None:
        """Write a mark if one is due, or if it is the `last` one."""
        if now < self._next and not last:
            return
        self._next = now + min(_MOST_S, max(_FIRST_S, (now - self._began) / _PART))
        rows = self._log.last_rows()
        if rows == self._seen:
            return
        core = self._core
        speeds = core.tables.speeds
        shares = speeds.shares()
        mark = MarkFact(
            time.time(),
            rows[1],
            rows[2],
            core.totals.samples,
            {
                m.name: (round(seconds, 6), round(shares.get(m.node, 0.0), 4))
                for m in core.tables.members.active_workers()
                if (seconds := speeds.seconds_of(m.node)) is not None
            },
        )
        self._log.write([Write(FactRow(core.incarnation, core.version, mark))])
        facts, logs, evaluations = rows
        self._seen = (facts + 1, logs, evaluations)
