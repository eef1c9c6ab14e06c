"""The content of blocks with copies, at the version of a checkpoint: the coordinator compares its hashes. Rule 12."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.effects import Send
from paceline.core.server.assignment import Assignment
from paceline.core.server.backups import Backups
from paceline.core.server.block_groups import BlockGroup
from paceline.core.server.replication import Replication
from paceline.messages import Hashed
from paceline.types import COORDINATOR


class Contents:
    """The version whose content is being hashed: at most one at a time, beside the training.

    The shell calls `take` after each message, hashes what it gets in the background, and calls `hashed`.
    """

    def __init__(self, assignment: Assignment, own: BlockGroup, backups: Backups, replication: Replication) -> None:
        self.version: int | None = None
        self._assignment = assignment
        self._own = own
        self._backups = backups
        self._replication = replication
        self._frozen: tuple[object, ...] = ()

    def begin(self, version: int) -> None:
        """Freeze the current version, which is `version`, of the blocks that have copies.

        Does nothing without such blocks, or while another version is being hashed.
        """
        if self.version is not None:
            return
        has_copies = self._replication.targets or len(self._assignment.group) > 1
        groups = [*([self._own] if has_copies else []), *self._backups.at(version)]
        self._frozen = tuple(group.store.checkpoints.freeze() for group in groups if group.blocks)
        self.version = version if self._frozen else None

    def report_chains(self, version: int) -> list[Send]:
        """Report the hash chains of all copies here; those of primaries come with the checkpoint."""
        copies = self._own.chains_of(self._assignment.others)
        return self._backups.report_chains(*self._assignment.at, version, copies)

    def take(self) -> tuple[object, ...]:
        """What the stores have frozen since the last call, to be hashed and released by the caller."""
        taken, self._frozen = self._frozen, ()
        return taken

    def hashed(self, version: int, contents: Mapping[int, bytes]) -> list[Send]:
        """Report the hashes of the frozen version, unless the placement has changed since."""
        if version != self.version:
            return []
        self.version = None
        return [Send(COORDINATOR, Hashed(*self._assignment.at, version, tuple(sorted(contents.items()))))]

    def void(self) -> None:
        """Forget the version: the placement or incarnation ends."""
        self.version = None
