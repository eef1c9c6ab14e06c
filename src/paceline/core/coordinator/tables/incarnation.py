"""The incarnation of a job: which one it is, where it began, and which holders of blocks a restart still waits for."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.effects import History, IncarnationFact
from paceline.messages import Checkpoint, Position
from paceline.types import NodeId

RESUMED = "resumed"
"""Why an incarnation began, where no server was lost while the job ran."""


class Incarnation:
    """Rule 6: every message and row of a job carries its incarnation.

    `base` is the checkpoint from which this one began. `awaited` are holders of blocks that a new coordinator has not
    heard yet; nothing is leased or committed before. Until `term_until` known members have their full new term.
    """

    def __init__(self) -> None:
        self.number = 0
        self.base: Checkpoint | None = None
        self.rewinds = 0
        self.recomputed = 0
        self.awaited: set[NodeId] = set()
        self.quiet_until = 0.0
        self.term_until = 0.0

    @property
    def position(self) -> Position | None:
        """The position from which this incarnation began; None if it began from nothing."""
        return None if self.base is None else self.base.position

    def restore(self, history: History) -> None:
        """Take over the newest incarnation of the log."""
        for row in history.facts:
            if isinstance(row.fact, IncarnationFact):
                fact = row.fact
                self.base = None if fact.position is None else Checkpoint(fact.folder, fact.position)
                self._count(row.version, fact.position, fact.why)
        self.number = history.incarnation

    def begin(self, base: Checkpoint | None, version: int, why: str) -> None:
        """The next incarnation begins from `base`; the job was at `version`."""
        self.number += 1
        self.base = base
        self._count(version, self.position, why)
        self.awaited = set()

    def _count(self, version: int, position: Position | None, why: str) -> None:
        if why != RESUMED:
            self.rewinds += 1
        self.recomputed += max(0, version - (0 if position is None else max(0, position.version)))

    def begin_term(self, now: float, grace_s: float, timeout_s: float) -> None:
        """A new coordinator starts: known members have a full term to register (rule 7)."""
        self.quiet_until = now + grace_s
        self.term_until = now + timeout_s

    def wait_for(self, holders: Iterable[NodeId]) -> None:
        """A new coordinator must hear these holders of blocks first."""
        self.awaited = set(holders)

    def heard(self, server: NodeId) -> None:
        """Wait for `server` no longer."""
        self.awaited.discard(server)
