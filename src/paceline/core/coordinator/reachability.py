"""Which servers are lost because others cannot reach them, and which workers get no leases. Rule 5.

A peer that cannot reach another reports it; the coordinator shrinks a set, evicts a server or stops leasing to that
worker.
"""

from __future__ import annotations

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    BlocksMayMove,
    Evicted,
    JobFailed,
    MemberRemoved,
    Output,
    PlacementDecided,
    WorkerGone,
    WorkersCutOff,
    WorkFreed,
)
from paceline.core.coordinator.placement import BlockPlacement
from paceline.core.coordinator.tables.members import Member
from paceline.core.coordinator.tables.reachability import BELIEVED_S, UNTIL_TRIED_S
from paceline.core.effects import History, Send
from paceline.messages import Position, Probe, Reachable, Unreachable
from paceline.types import NodeId, name_of

_OTHERS_S = 0.4  # after the first report, in which other peers may report the reporter itself
_TRY_S = 1.0
_BLAMED_S = 60.0  # in which workers that had one server evicted are not believed about another
_BEATS = 5  # in a row that may be lost on their way
_GIVE_UP_S = 300.0  # in which no worker reaches a server whose blocks have no other copy


class Reachability:
    """Takes reports of peers that do not answer, and decides which of the two is cut off."""

    def __init__(self, tables: Tables, placement: BlockPlacement) -> None:
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._members = tables.members
        self._placed = tables.placed
        self._placement = placement
        self._reach = tables.reach
        self._stuck_since: float | None = None
        self._next_try = 0.0
        self._blamers: frozenset[NodeId] = frozenset()
        self._blamed_at = 0.0

    def restore(self, history: History) -> list[Output]:
        """Nothing is known; peers report again."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Links do not depend on the incarnation: reports stay."""
        return []

    @property
    def cuts(self) -> list[tuple[NodeId, NodeId]]:
        """Pairs of which the first cannot reach the second, as far as that is known."""
        return sorted(self._reach.cuts(self._clock.now))

    # ------------------------------------------------------------ reports

    def unreachable(self, sender: NodeId, message: Unreachable) -> list[Output]:
        """`sender` gets no answer from a server: that one leaves its sets, or this worker gets no more leases."""
        members, placement, now = self._members.members, self._placed.placement, self._clock.now
        reporter, member = members.get(sender), members.get(message.peer)
        if placement is None or reporter is None or member is None or message.epoch != placement.epoch:
            return []
        if reporter.role == "server":
            said_s = self._reach.report(sender, message.peer, now, UNTIL_TRIED_S)
            return self._part(reporter, member) if said_s >= _OTHERS_S else []
        said_s = self._reach.report(sender, message.peer, now, BELIEVED_S)
        out = self._note_cut_off()
        if message.peer in self._placed.owners and said_s >= _OTHERS_S:
            out += self._blame(member)
        return out

    def reachable(self, sender: NodeId, message: Reachable) -> list[Output]:
        """`sender` gets an answer again."""
        member = self._members.members.get(sender)
        wary = member is not None and member.role == "server"
        self._reach.restore(sender, message.peer, self._clock.now, wary=wary)
        return [*self._note_cut_off(), BlocksMayMove(0.0), WorkFreed()]

    def server_removed(self, event: MemberRemoved) -> list[Output]:
        """Reports about a holder of blocks that is no member any more do not count."""
        if event.member.node in self._placed.holders and self._identity.failure is None:
            self._reach.forget(event.member.node)
        return []

    def worker_gone(self, event: WorkerGone) -> list[Output]:
        """Reports of a worker that is gone do not count."""
        self._reach.forget(event.worker)
        return []

    def placement_changed(self, event: PlacementDecided) -> list[Output]:
        """There are other primaries: see which workers cannot reach them."""
        return self._note_cut_off()

    def _note_cut_off(self) -> list[Output]:
        """Workers that cannot reach some primary get no leases."""
        owners = self._placed.owners
        cut_off = frozenset(node for node, peer in self._reach.cuts(self._clock.now) if peer in owners)
        self._reach.cut(cut_off)
        return [WorkersCutOff(cut_off)] if cut_off else []

    # ------------------------------------------------------------ decisions

    def _blame(self, server: Member) -> list[Output]:
        """Evict a primary that most workers cannot reach, if it can be spared.

        Workers that reach none of several primaries are cut off themselves. So are workers that had another server
        evicted shortly before.
        """
        now, cuts, owners = self._clock.now, self._reach.cuts(self._clock.now), self._placed.owners
        if now - self._blamed_at > _BLAMED_S:
            self._blamers = frozenset()
        without = frozenset(
            m.node
            for m in self._members.active_workers()
            if (m.node, server.node) in cuts
            and (len(owners) == 1 or any((m.node, owner) not in cuts for owner in owners))
        )
        if without and without <= self._blamers:
            self._blamed_at = now
            return []
        num_workers = self._members.num_workers
        if 2 * len(without) <= num_workers or not self._placement.can_spare(server.node):
            return []
        self._blamers, self._blamed_at = without | self._blamers, now
        return [Evicted(server, f"{len(without)} of {num_workers} workers cannot reach it")]

    def _part(self, primary: Member, member: Member) -> list[Output]:
        """A primary cannot reach one of its backups: the set shrinks before anything is committed without it.

        The sets of the other one stay as they are: it may be that the primary is lost, and the backup takes over.
        Evict the primary if more peers report it unreachable than its backup, and it can be spared.
        """
        placement = self._placed.placement
        assert placement is not None
        of_primary, of_member = (self._reports(node) for node in (primary.node, member.node))
        if of_primary > of_member and self._placement.can_spare(primary.node):
            return [Evicted(primary, f"{of_primary} others cannot reach it")]
        blocks = frozenset(b for b, owner in enumerate(placement.owners) if owner == primary.node)
        return self._placement.shrink({member.node: blocks}, f"{primary.name} cannot reach {member.name}")

    def _reports(self, node: NodeId) -> int:
        return sum(peer == node for _, peer in self._reach.cuts(self._clock.now))

    # ------------------------------------------------------------ time passes

    def evict_silent(self) -> list[Output]:
        """Evict a silent server after `reach_s` if each of its blocks has another copy on a server that is not silent.

        Copies on servers that are as silent do not count: the first one may be back before them.
        """
        placement, now = self._placed.placement, self._clock.now
        if placement is None or not placement.backups or self._identity.failure is not None:
            return []
        spec = self._identity.spec
        limit_s = max(spec.reach_s, _BEATS * spec.heartbeat_s)
        servers = self._members.by_role("server")
        for member in servers:
            silent_s = now - member.seen
            is_awaited = member.node in self._incarnation.awaited
            if silent_s <= limit_s or member.node not in self._placed.holders or is_awaited:
                continue
            heard = {m.node for m in servers if m.seen > member.seen + limit_s / 2}
            sets = [placement.copies(block) for block in range(len(placement.owners))]
            if heard and all(heard & set(copies) for copies in sets if member.node in copies):
                return [Evicted(member, f"silent for {silent_s:.1f} s")]
        return []

    def probe(self) -> list[Output]:
        """Have servers try again to reach peers that they could not."""
        now = self._clock.now
        if now < self._next_try:
            return []
        self._next_try = now + _TRY_S
        servers = {m.node: m.address or "" for m in self._members.by_role("server")}
        pairs = [(node, peer) for node, peer in self._reach.untried(now) if node in servers and peer in servers]
        for node, peer in pairs:
            self._reach.report(node, peer, now, UNTIL_TRIED_S)  # cut off until the server reports that it is not
        return [Send(node, Probe(self._identity.generation, peer, servers[peer])) for node, peer in pairs]

    def recheck(self) -> list[Output]:
        """Reports are believed for a while only: workers may be cut off no longer."""
        before = self._reach.cut_off
        if not before:
            return []
        out = self._note_cut_off()
        return out if self._reach.cut_off == before else [*out, WorkFreed()]

    def fail_if_stuck(self) -> list[Output]:
        """Fail the job when no worker has reached some server for long: no slot can be computed without it."""
        now, cut_off = self._clock.now, self._reach.cut_off
        workers = {m.node for m in self._members.active_workers()} if cut_off else set()
        if not workers or not workers <= cut_off or self._identity.failure is not None:
            self._stuck_since = None
            return []
        self._stuck_since = now if self._stuck_since is None else self._stuck_since
        if now - self._stuck_since < _GIVE_UP_S:
            return []
        away = " and ".join(sorted({name_of(peer) for node, peer in self._reach.cuts(now) if node in workers}))
        reason = f"no worker has reached {away} for {_GIVE_UP_S:.0f} s: check the network between them and its log"
        return [JobFailed("lost", reason)]
