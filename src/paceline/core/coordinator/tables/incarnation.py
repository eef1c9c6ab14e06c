"""The incarnation of a job: its number, the checkpoint it began from, and the servers that a restart waits for."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.effects import History, IncarnationFact
from paceline.messages import Checkpoint, Position
from paceline.types import NodeId

RESUMED = "resumed"
"""The reason of an incarnation that began because the user resumed the run."""


class Incarnation:
    """Rule 6: every message and row of a job carries its incarnation.

    `base` is the checkpoint from which this incarnation began. `awaited` are the holders of blocks that have not yet
    registered with a restarted coordinator; until they have, no slot is leased and no step is committed. No slot is
    leased before `quiet_until` unless all wanted workers are back. Members have until `term_until` to register.
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
        """The position from which this incarnation began; None for the beginning of the job."""
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
        """Begin the next incarnation from checkpoint `base`; the job was at `version`."""
        self.number += 1
        self.base = base
        self._count(version, self.position, why)
        self.awaited = set()

    def _count(self, version: int, position: Position | None, why: str) -> None:
        if why != RESUMED:
            self.rewinds += 1
        self.recomputed += max(0, version - (0 if position is None else max(0, position.version)))

    def begin_term(self, now: float, grace_s: float, timeout_s: float) -> None:
        """Give the members known from the log a full term to register with a restarted coordinator (rule 7)."""
        self.quiet_until = now + grace_s
        self.term_until = now + timeout_s

    def wait_for(self, holders: Iterable[NodeId]) -> None:
        """Wait for the registration of these holders of blocks."""
        self.awaited = set(holders)

    def heard(self, server: NodeId) -> None:
        """Stop waiting for `server`."""
        self.awaited.discard(server)
