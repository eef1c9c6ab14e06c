"""Where the blocks are: the placement in force. The `placement` module decides what it becomes."""

from __future__ import annotations

from paceline.core.coordinator.tables.incarnation import Incarnation
from paceline.core.effects import History, PlacementFact
from paceline.messages import Position
from paceline.types import NodeId, Placement

_KEPT = 16  # epochs whose first version is told to workers, which may have missed some


class PlacedBlocks:
    """The placement and its epoch (rule 5). Only `BlockPlacement` changes it.

    `grouped`: the holders of blocks sum together, as a group. `owners` are the primaries, `voters` those that must be
    ready for a commit: the group if there is one, else the owners. `holders` are all servers that have some copy or are
    being sent one. With `whole_attempts`, each slot of this epoch counts as one attempt, because workers are not equal
    machines (rule 12); `one_attempt` is true also in a group. `kind` is the machine of all workers that took part in
    this epoch, "" if it is not known. `firsts` has the last version that was committed before each of the last epochs.
    """

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self.placement: Placement | None = None
        self.epoch = 0
        self.grouped = False
        self.one_attempt = False
        self.firsts: dict[int, int] = {}
        self.owners: tuple[NodeId, ...] = ()
        self.voters: tuple[NodeId, ...] = ()
        self.holders: tuple[NodeId, ...] = ()
        self.failovers = 0
        self.whole_attempts = False
        self.kind = ""

    def restore(self, history: History) -> None:
        """Take over the last placement of this incarnation, and the highest epoch of all incarnations."""
        for row in history.facts:
            if isinstance(row.fact, PlacementFact):
                if row.fact.placement.epoch > self.epoch:
                    self._begin(row.fact.placement.epoch, row.version)
                self.failovers += row.fact.failover
                if row.incarnation == history.incarnation:
                    self.whole_attempts, self.kind = row.fact.whole_attempts, row.fact.kind
                    self._place(row.fact.placement)

    def reset(self, position: Position | None) -> None:
        """Forget the placement; its epoch stays used."""
        self._place(None)

    def set(
        self, placement: Placement, version: int, *, failover: bool = False, whole_attempts: bool, kind: str
    ) -> None:
        """Put `placement` into force after `version`, the last committed one. `failover`: a backup was promoted."""
        if placement.epoch > self.epoch:
            self._begin(placement.epoch, version)
        self.whole_attempts, self.kind = whole_attempts, kind
        self.failovers += failover
        self._place(placement)

    def _begin(self, epoch: int, version: int) -> None:
        self.epoch = epoch
        self.firsts[epoch] = version
        while len(self.firsts) > _KEPT:
            del self.firsts[min(self.firsts)]

    def _place(self, placement: Placement | None) -> None:
        self.placement = placement
        self.grouped = placement is not None and bool(placement.group)
        self.one_attempt = self.whole_attempts or self.grouped
        self.owners = () if placement is None else tuple(sorted(set(placement.owners)))  # some servers own no block
        self.voters = tuple(sorted(placement.group)) if placement is not None and placement.group else self.owners
        self.holders = () if placement is None else placement.holders

    def is_current(self, incarnation: int, epoch: int) -> bool:
        """Whether these are the incarnation and the epoch in force."""
        placement = self.placement
        return placement is not None and epoch == placement.epoch and incarnation == self._incarnation.number
