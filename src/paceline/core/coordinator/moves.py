"""Moves between reducers: the blocks move from servers to the members of a group, or back, at a step boundary.

A move is a change of placement. Before it, the holders of the other kind get copies as any new server does, while the
job goes on; then one epoch makes them owners. Rule 19: the segment of the next step decides, so a restart or a rewind
repeats the move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.holders import holders, wanted_holders
from paceline.core.coordinator.in_sync_sets import Backups, Owners, normal
from paceline.core.coordinator.placement_plan import Servers, missing, settle
from paceline.types import BlockSpec, NodeId, Placement, is_member, name_of

_LEAD_S = 10.0  # seconds before a scheduled move: then copies are made, so that the job need not wait for them
_LEAD_STEPS = 2000  # the most steps before a scheduled move at which copies are made
_SHORT_S = 10.0  # seconds that a move waits for holders that are wanted, if others have every block


def side(placement: Placement, nodes: Collection[NodeId]) -> Placement:
    """`placement` with the copies on `nodes` alone; a block without a copy there keeps its copies."""
    owners: list[NodeId] = []
    backups: list[tuple[NodeId, ...]] = []
    for block in range(len(placement.owners)):
        copies = placement.copies(block)
        mine = [node for node in copies if node in nodes] or copies
        owners.append(mine[0])
        backups.append(tuple(mine[1:]))
    return replace(placement, owners=tuple(owners), backups=normal(backups), joining=())


def with_copies(owners: Owners, backups: Backups, placement: Placement, nodes: Collection[NodeId]) -> Backups:
    """`backups` with the copies that `placement` has on `nodes`."""
    sets = []
    for block, owner in enumerate(owners):
        known = (owner, *(backups[block] if backups else ()))
        sets.append((*known[1:], *(n for n in placement.copies(block) if n in nodes and n not in known)))
    return normal(sets)


def has_all(placement: Placement, nodes: Collection[NodeId], *, grouped: bool) -> bool:
    """Whether `nodes` have every block in sync, if `grouped` one of them all of the blocks."""
    if grouped:
        return any(node in nodes for node in placement.everywhere)
    return all(any(n in nodes for n in placement.copies(b)) for b in range(len(placement.owners)))


class Moves:
    """Decides when holders of the other kind get copies, and when they take over. A part of `Rebalance`."""

    def __init__(self, tables: Tables) -> None:
        self._clock = tables.clock
        self._identity = tables.identity
        self._log = tables.log
        self._members = tables.members
        self._phases = tables.phases
        self._placed = tables.placed
        self._reducers = tables.reducers
        self._since: float | None = None
        self._prepared = (0, 0)

    @property
    def is_due(self) -> bool:
        """Whether no step of the open phase can be leased before the blocks have moved."""
        is_running = self._placed.placement is not None and self._log.version >= 0 and self._phases.open is not None
        return is_running and self._reducers.must_move

    def is_near(self, pause_s: float) -> bool:
        """Whether to make copies now for the next move, if commits are at most `pause_s` apart."""
        at = self._reducers.next_move
        if at is None or self.is_due:
            return self.is_due
        steps = at - self._log.watermark.low
        return steps <= 2 or steps <= min(_LEAD_STEPS, _LEAD_S / max(pause_s, 1e-3))

    def wants_a_look(self, pause_s: float) -> bool:
        """Whether a move is due, or near and not prepared, or copies are left of one that is not near any more."""
        if self.is_due:
            return True
        self._since = None
        if self.is_near(pause_s):
            return self._prepared != (self._placed.epoch, self._reducers.next_move)
        return any(is_member(node) != self._placed.grouped for node in self._placed.holders)

    def note_prepared(self) -> None:
        """Note that all copies for the next move are made, or cannot be made now."""
        self._prepared = (self._placed.epoch, self._reducers.next_move or 0)

    def take_over(
        self, blocks: Sequence[BlockSpec], placement: Placement, there: Servers
    ) -> tuple[Owners, Backups] | None:
        """The owners and backups among the servers `there`, if these can take over now; None if the move must wait."""
        if not self.is_due:
            return None
        now, grouped = self._clock.now, not self._placed.grouped
        self._since = now if self._since is None else self._since
        if not has_all(placement, there.staying, grouped=grouped):
            return None
        is_short = len(there.staying) < wanted_holders(self._members, grouped=grouped)
        if (is_short or missing(blocks, placement, there)) and now - self._since < _SHORT_S:
            return None
        return settle(blocks, side(placement, there.staying), there)

    # ------------------------------------------------------------ what a user reads

    @property
    def awaited(self) -> str:
        """What a move that is due, or the first placement, waits for; "" if neither waits for holders."""
        placement, grouped = self._placed.placement, self._reducers.wanted
        if not self._identity.spec.collective or self._identity.model is None:
            return ""
        if placement is not None and not self.is_due:
            return ""
        text = f"from step {self._log.watermark.low} on the job needs {'a group of workers' if grouped else 'servers'}"
        leaving = self._members.draining
        there = [m.node for m in holders(self._members, grouped=grouped) if m.node not in leaving]
        if not there and grouped:
            return f"{text}: it waits for a worker that can hold the model"
        if not there:
            hint = "" if self._members.wanted_servers else "; `paceline scale --servers 1` starts one"
            return f"{text}: it waits for servers{hint}"
        if placement is None:
            return ""
        short = [node for node in there if not has_all(placement, [node], grouped=True)] if grouped else there
        return f"{text}: it waits for the copies of {' and '.join(map(name_of, short or there))}"
