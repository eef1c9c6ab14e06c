"""Planned changes of the placement: make missing copies, balance the blocks, move the blocks of servers that leave.

A change makes uncommitted work void (rule 5), so it waits for a moment at which no work is lost. `placement_plan`
decides which server should hold which block.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.checkpoints import Checkpoints
from paceline.core.coordinator.events import BlocksMayMove, Output, ServerJoined, ServersWanted, StepCommitted
from paceline.core.coordinator.holders import holders
from paceline.core.coordinator.in_sync_sets import only_whole
from paceline.core.coordinator.moves import Moves, side, with_copies
from paceline.core.coordinator.placement import BlockPlacement
from paceline.core.coordinator.placement_plan import Servers, joins, missing, settle
from paceline.core.effects import History
from paceline.messages import Position
from paceline.types import NodeId, Placement

_AGAIN_S = 0.25  # seconds until planning is tried again, if a change is not possible now
_STALLED_S = 3.0  # seconds without a commit after which the placement changes even if work is lost
_OVERDUE_S = 10.0  # seconds that a change waits at most for a moment at which no work is lost
_LONGEST_S = 60.0  # seconds: a longer pause between two commits counts as this long


class Rebalance:
    """Plans a new placement when an event may require one."""

    def __init__(self, tables: Tables, placement: BlockPlacement, checkpoints: Checkpoints) -> None:
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._members = tables.members
        self._pins = tables.pins
        self._placed = tables.placed
        self._reach = tables.reach
        self._placement = placement
        self._checkpoints = checkpoints
        self.moves = Moves(tables)
        self._may_move = tables.identity.spec.collective
        self._look_at: float | None = None
        self._committed_at: float | None = None
        self._pause_s = 0.0

    def restore(self, history: History) -> list[Output]:
        """Do nothing: the first server that registers starts a plan."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: a plan that was due stays due."""
        return []

    def blocks_may_move(self, event: BlocksMayMove) -> list[Output]:
        """Plan after `after_s`."""
        self._look(event.after_s)
        return []

    def server_joined(self, event: ServerJoined) -> list[Output]:
        """Plan now: the new server may get blocks."""
        self._look(0.0)
        return []

    def servers_wanted(self, event: ServersWanted) -> list[Output]:
        """Plan now: servers that are not wanted must give up their blocks."""
        self._look(0.0)
        return []

    def _look(self, after_s: float) -> None:
        at = self._clock.now + after_s
        self._look_at = at if self._look_at is None else min(at, self._look_at)

    def tick(self) -> list[Output]:
        """Plan if a plan is due and the change loses no work."""
        if self._may_move and self.moves.wants_a_look(self._pause_s):
            self._look(0.0)
            if not self._checkpoints.settled and not self._is_overdue():
                return []  # a change would end the checkpoint
        return self._plan_if_due() if self._may_void() else []

    def committed(self, event: StepCommitted) -> list[Output]:
        """Plan right after a commit, if a plan is due: in lock-step no slot of the next step is computed yet.

        While a checkpoint is being written the plan waits: a change would end the checkpoint.
        """
        now = self._clock.now
        if self._committed_at is not None:
            pause_s, decayed_s = now - self._committed_at, 0.7 * self._pause_s
            self._pause_s = decayed_s if pause_s < decayed_s else min(pause_s, _LONGEST_S)
        self._committed_at = now
        if self._may_move and self.moves.wants_a_look(self._pause_s):
            self._look(0.0)
        if self._look_at is None:
            return []
        busy = event.save or not self._checkpoints.settled
        return [] if busy and not self._is_overdue() else self._plan_if_due()

    def _may_void(self) -> bool:
        """Whether a change between two commits loses no work, or has waited too long."""
        if self._reach.cut_off or not len(self._leases.live) or self._is_overdue():
            return True
        since = max(self._committed_at or 0.0, self._look_at or 0.0)
        return self._clock.now - since > max(_STALLED_S, 3 * self._pause_s)

    def _is_overdue(self) -> bool:
        """Whether a plan has been due for so long that it may lose work."""
        return self._look_at is not None and self._clock.now - self._look_at > max(_OVERDUE_S, 3 * self._pause_s)

    def _plan_if_due(self) -> list[Output]:
        now, placement = self._clock.now, self._placed.placement
        if self._look_at is None or now < self._look_at or self._placement.dissolved:
            return []
        is_ready = self._log.version >= 0 and not self._incarnation.awaited and self._identity.failure is None
        if placement is None or not is_ready or placement.joining:
            self._look_at = now + _AGAIN_S
            return []
        if self._pins.older(self._log.version):  # a new copy would not have the pinned version
            return []
        if self._lacks_servers():
            self._look_at = now + _AGAIN_S
            return []
        self._look_at = self._reach.next_end(now)
        return self._plan(placement)

    def _lacks_servers(self) -> bool:
        """Whether servers leave before enough others are there: their blocks keep all copies until then."""
        servers = [m.node for m in holders(self._members, grouped=self._placed.grouped)]
        leaving = self._members.draining.intersection(servers)
        copies = min(self._identity.spec.replicas + 1, len(servers))
        return bool(leaving) and len(servers) - len(leaving) < copies

    def _plan(self, placement: Placement) -> list[Output]:
        blocks, grouped = self._identity.blocks, self._placed.grouped
        here = self._servers(placement, grouped=grouped)
        moves = self._may_move and self.moves.is_near(self._pause_s)
        there = self._servers(placement, grouped=not grouped) if moves else None
        taken = None if there is None else self.moves.take_over(blocks, placement, there)
        if taken is not None:
            why = f"the blocks move to {'servers' if grouped else 'the workers'}"
            return self._placement.change(*taken, why=why, planned=True, grouped=not grouped)
        kind = {m.node for m in holders(self._members, grouped=grouped)}
        owners, backups = settle(blocks, side(placement, kind), here)
        if there is not None:
            backups = with_copies(owners, backups, placement, there.staying)
        if grouped:
            owners, backups = only_whole(owners, backups)
        settled = msgspec.structs.replace(placement, owners=owners, backups=backups)
        joining = joins(blocks, settled, here)
        if there is not None and not joining:
            joining = missing(blocks, settled, there)
            if not joining:
                self.moves.note_prepared()
        grows = grouped and set(placement.group) != {n for n in settled.everywhere if n in kind}
        if (owners, backups) == (placement.owners, placement.backups) and not joining and not grows:
            return []
        why = "copies are made" if joining else "the group changes" if grows else "blocks are balanced"
        return self._placement.change(owners, backups, joining, why=why, planned=True)

    def _servers(self, placement: Placement, *, grouped: bool) -> Servers:
        """The holders of one kind: those that stay, those that leave, and who does not reach whom."""
        hosts = {m.node: m.host for m in holders(self._members, grouped=grouped)}
        workers = {m.node for m in self._members.by_role("worker")}
        cuts = self._reach.cuts(self._clock.now)
        barred = frozenset(pair for pair in cuts if pair[0] not in workers)
        leaving = self._members.draining | _cut_off(placement.group, barred) | self._reach.barred
        return Servers(
            staying=tuple(s for s in hosts if s not in leaving),
            leaving=leaving,
            replicas=self._placement.replicas(grouped=grouped),
            barred=barred,
            unfit=frozenset(peer for node, peer in cuts if node in workers),
            hosts=hosts,
        )


def _cut_off(group: Collection[NodeId], cuts: Collection[tuple[NodeId, NodeId]]) -> frozenset[NodeId]:
    """The processes outside of `group` that are cut off from a member of it: they stay outside."""
    pairs = [pair for one, other in cuts for pair in ((one, other), (other, one))]
    return frozenset(one for one, other in pairs if one not in group and other in group)
