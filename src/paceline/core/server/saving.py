"""The version that this server writes to a checkpoint: at most one at a time."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.core.server.assignment import Assignment
from paceline.core.server.block_groups import BlockGroup
from paceline.messages import Saved
from paceline.types import COORDINATOR, SavedFile


class Saving:
    """The checkpoint that this server is saving.

    `version` stays frozen until it has been written and reported; None if nothing is being saved.
    """

    def __init__(self, assignment: Assignment, own: BlockGroup) -> None:
        self.version: int | None = None
        self._assignment = assignment
        self._own = own
        self._chains: dict[int, bytes] = {}
        self._report: Saved | None = None

    def begin(self, version: int) -> None:
        """Freeze the current version, which is `version`, with its hash chains. The shell writes it."""
        if self.version != version and self._own.blocks:
            others = self._assignment.others
            if others.issuperset(self._own.blocks):
                return
            self._own.store.checkpoints.save(version, others)
            chains = {block: chain for block, chain in self._own.chains.items() if block not in others}
            self.version, self._report, self._chains = version, None, chains

    def written(self, version: int, files: tuple[SavedFile, ...], problem: str) -> list[Send]:
        """Report that the shell has written the frozen version, or the `problem` that it had."""
        if version != self.version:
            return []
        chains = tuple(sorted(self._chains.items()))
        self._report = Saved(*self._assignment.at, version, files, chains, problem)
        return self.repeat()

    def end(self, version: int) -> None:
        """Stop reporting `version`: the coordinator has the report."""
        if version == self.version:
            self.void()

    def repeat(self) -> list[Send]:
        """The report, until the coordinator has it."""
        return [] if self._report is None else [Send(COORDINATOR, self._report)]

    def void(self) -> None:
        """Give up the frozen version: the placement or incarnation ends."""
        self.version = self._report = None
