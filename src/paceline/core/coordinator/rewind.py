"""A rewind: the job returns to a checkpoint, or to its beginning, as a new incarnation. Rule 6.

The new incarnation is made durable first; then every machine resets itself to the position of the checkpoint.
"""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.checkpoints import Checkpoints
from paceline.core.coordinator.events import BlocksLost, IncarnationBegan, JobFailed, Output, WorkerRewound
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.tables.incarnation import RESUMED
from paceline.core.effects import FactRow, History, IncarnationFact, Write
from paceline.messages import Checkpoint, NotLoaded, Position
from paceline.types import NodeId


class Rewind:
    """Begins incarnations."""

    def __init__(self, tables: Tables, segments: Segments, checkpoints: Checkpoints) -> None:
        self._attendance = tables.attendance
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._log = tables.log
        self._members = tables.members
        self._placed = tables.placed
        self._segments = segments
        self._checkpoints = checkpoints

    def restore(self, history: History) -> list[Output]:
        """Take over the newest incarnation of the log."""
        self._incarnation.restore(history)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: this machine has begun the incarnation itself."""
        return []

    @property
    def is_rewinding(self) -> bool:
        """Whether the job was rewound and its blocks are not placed yet."""
        is_placed = self._placed.placement is not None
        return self._identity.model is not None and not is_placed and self._incarnation.number > 0

    def resume(self, folder: str) -> list[Output]:
        """Continue a job whose processes all ended, from the checkpoint in `folder` ("": from its beginning)."""
        self._checkpoints.drop_after(folder)
        return self._begin(self._checkpoints.newest, RESUMED)

    def blocks_lost(self, event: BlocksLost) -> list[Output]:
        """Rewind to the newest complete checkpoint, or to the beginning; fail the job if rewinds are not allowed."""
        if self._identity.spec.rewinds:
            return self._begin(self._checkpoints.newest, f"{event.name} is lost ({event.why})")
        if self._segments.is_over:
            return []
        reason = f"{event.name} is lost ({event.why}), and its blocks have no other copy"
        return [JobFailed("lost", reason)]

    def not_loaded(self, sender: NodeId, message: NotLoaded) -> list[Output]:
        """Rewind to the next older checkpoint: a server could not load that of this incarnation."""
        if not self._placed.is_current(message.incarnation, message.epoch) or self._incarnation.base is None:
            return []
        self._checkpoints.drop_damaged(message.folder, message.problem)
        return self._begin(self._checkpoints.newest, f"{message.folder} cannot be loaded")

    def _begin(self, to: Checkpoint | None, why: str) -> list[Output]:
        position, before = None if to is None else to.position, self._log.version
        number = self._incarnation.number + 1
        fact = IncarnationFact(number, "" if to is None else to.folder, position, why)
        out: list[Output] = [Write(FactRow(number, before, fact))]
        out += self._checkpoints.tell_over(self._checkpoints.saving)
        self._incarnation.begin(to, before, why)
        return [*out, IncarnationBegan(position)]

    def send_back(self, event: IncarnationBegan) -> list[Output]:
        """Tell the workers whose script is further than the job to start again."""
        return [
            WorkerRewound(member.node)
            for member in self._members.active_workers()
            if self._segments.is_ahead(self._attendance.progress(member.node))
        ]
