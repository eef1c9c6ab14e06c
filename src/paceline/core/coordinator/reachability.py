"""Which servers are evicted because peers cannot reach them, and which workers get no leases. Rule 5.

A peer that cannot reach a server reports it. The coordinator shrinks an in-sync set, evicts a server, or grants no more
leases to the worker that reported.
"""

from __future__ import annotations

from collections.abc import Collection

from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.apart import apart
from paceline.core.coordinator.events import (
    BlocksMayMove,
    Evicted,
    JobFailed,
    MembersRemoved,
    Output,
    PlacementDecided,
    WorkersCutOff,
    WorkersGone,
    WorkFreed,
)
from paceline.core.coordinator.host_loss import lost_with, silence_s, silent_hosts
from paceline.core.coordinator.placement import BlockPlacement
from paceline.core.coordinator.tables.members import Member
from paceline.core.coordinator.tables.reachability import BELIEVED_S, UNTIL_TRIED_S
from paceline.core.effects import History, Send
from paceline.messages import Position, Probe, Reachable, Unreachable
from paceline.types import NodeId, Placement, name_of

_OTHERS_S = 0.4  # seconds from the first report to a decision: other peers may report the reporter in this time
_TRY_S = 1.0  # seconds between two requests to servers to try the connection again
_BLAMED_S = 60.0  # seconds: workers whose reports evicted a server cannot have another evicted for this long
_GIVE_UP_S = 300.0  # seconds: the job fails when no worker has reached all primaries for this long


class Reachability:
    """Takes reports of peers that do not answer, and decides which of the two peers is cut off."""

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
        """Do nothing: peers report again."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Do nothing: connections do not depend on the incarnation, so reports stay."""
        return []

    @property
    def cuts(self) -> list[tuple[NodeId, NodeId]]:
        """Pairs of peers of which the first reports that it cannot reach the second."""
        return sorted(self._reach.cuts(self._clock.now))

    # ------------------------------------------------------------ reports

    def unreachable(self, sender: NodeId, message: Unreachable) -> list[Output]:
        """Take the report of `sender` that a server does not answer.

        If `sender` is a primary, that server leaves its in-sync sets. If it is a worker, it gets no more leases.
        """
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
        """Take the report of `sender` that a server answers again."""
        member = self._members.members.get(sender)
        wary = member is not None and member.role == "server"
        self._reach.restore(sender, message.peer, self._clock.now, wary=wary)
        return [*self._note_cut_off(), BlocksMayMove(0.0), WorkFreed()]

    def servers_removed(self, event: MembersRemoved) -> list[Output]:
        """Forget the reports by and about holders of blocks that are no members any more."""
        for member in event.members:
            if member.node in self._placed.holders and self._identity.failure is None:
                self._reach.forget(member.node)
        return []

    def workers_gone(self, event: WorkersGone) -> list[Output]:
        """Forget the reports of workers that are gone."""
        for worker in event.workers:
            self._reach.forget(worker)
        return []

    def placement_changed(self, event: PlacementDecided) -> list[Output]:
        """Find the workers that cannot reach one of the new primaries."""
        return self._note_cut_off()

    def _note_cut_off(self) -> list[Output]:
        """Note which workers cannot reach some primary: they get no leases."""
        owners = self._placed.owners
        cut_off = frozenset(node for node, peer in self._reach.cuts(self._clock.now) if peer in owners)
        self._reach.cut(cut_off)
        return [WorkersCutOff(cut_off)] if cut_off else []

    # ------------------------------------------------------------ decisions

    def _blame(self, server: Member) -> list[Output]:
        """Evict a primary that most workers cannot reach, if other servers have its blocks.

        A worker that reaches none of several primaries does not count: it is cut off itself. Nor do workers whose
        reports evicted another server shortly before.
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
        if not self._is_majority(without) or not self._placement.can_spare(server.node):
            return []
        self._blamers, self._blamed_at = without | self._blamers, now
        return [Evicted((server,), f"{len(without)} of {self._members.num_workers} workers cannot reach it")]

    def _is_majority(self, workers: frozenset[NodeId]) -> bool:
        """Whether most hosts with workers have most of them in `workers`; among equally many hosts, workers count."""
        hosts: dict[str, list[NodeId]] = {}
        for member in self._members.active_workers():
            hosts.setdefault(member.host, []).append(member.node)
        complaining = sum(2 * len(workers.intersection(mates)) > len(mates) for mates in hosts.values())
        if len(hosts) == 1 or 2 * complaining == len(hosts):
            return 2 * len(workers) > self._members.num_workers
        return 2 * complaining > len(hosts)

    def _part(self, primary: Member, member: Member) -> list[Output]:
        """Separate a primary from a backup that it cannot reach.

        Evict the primary if more hosts complain about it than about its backup, and other servers have its blocks.
        Otherwise the backup leaves the in-sync sets of this primary, before a commit is made without it. It stays in
        other sets.
        """
        placement = self._placed.placement
        assert placement is not None
        if primary.node in placement.group and member.node in placement.group:
            return self._part_members(primary, member)
        of_primary, of_member = (self._reports(node) for node in (primary.node, member.node))
        if of_primary > of_member and self._placement.can_spare(primary.node):
            return [Evicted((primary,), f"{of_primary} others cannot reach it")]
        blocks = frozenset(b for b, owner in enumerate(placement.owners) if owner == primary.node)
        return self._placement.shrink({member.node: blocks}, f"{primary.name} cannot reach {member.name}")

    def _part_members(self, one: Member, other: Member) -> list[Output]:
        """Take one of two members that cannot reach each other out of the group; the others go on, and so does the job.

        It is the one of which more complain, or else the one that came later. It returns when the two reach each other.
        One that the coordinator does not hear either is not only apart: `evict_silent` decides about it.
        """
        if self._clock.now - min(one.seen, other.seen) > silence_s(self._identity.spec) / 2:
            return []
        leaves = max(one, other, key=lambda m: (self._reports(m.node), m.joined, m.node))
        stays = other if leaves is one else one
        why = f"{stays.name} and {leaves.name} cannot reach each other"
        out = self._placement.part_with(leaves.node, why=why)
        return [apart(stays, leaves, why), *out] if out else []

    def _reports(self, node: NodeId) -> int:
        """How many others complain: the processes of the host of `node` about `node`, other hosts about its host.

        So the processes of one host, which share a link, have one voice about another host (rule 14).
        """
        hosts = {m.node: m.host for m in self._members.members.values()}
        here = hosts.get(node, "")
        voices: set[tuple[str, str]] = set()
        for reporter, peer in self._reach.cuts(self._clock.now):
            where = hosts.get(reporter, "")
            if where == here and peer == node:
                voices.add(("process", reporter))
            elif where != here and hosts.get(peer, "") == here:
                voices.add(("host", where))
        return len(voices)

    # ------------------------------------------------------------ time passes

    def evict_silent(self) -> list[Output]:
        """Evict a server that is silent for `reach_s` if each of its blocks has a copy on a server heard since.

        A copy on a server that is silent for about as long does not count: that server may be lost as well. If the
        whole host of the server is silent, all its processes are evicted together. So are those of a silent host that
        holds no blocks (rule 14).
        """
        placement, now = self._placed.placement, self._clock.now
        if placement is None or self._identity.failure is not None:
            return []
        limit_s = silence_s(self._identity.spec)
        for host, mates in silent_hosts(self._members, now, limit_s).items():
            if not any(m.node in self._placed.holders for m in mates):
                silent_s = now - max(m.seen for m in mates)
                return [Evicted(tuple(mates), f"silent for {silent_s:.1f} s", host)]
        return self._evict_silent_server(placement, limit_s) if placement.backups else []

    def _evict_silent_server(self, placement: Placement, limit_s: float) -> list[Output]:
        now, servers = self._clock.now, self._members.by_role("server")
        for member in servers:
            silent_s = now - member.seen
            is_awaited = member.node in self._incarnation.awaited
            if silent_s <= limit_s or member.node not in self._placed.holders or is_awaited:
                continue
            together = lost_with(self._members, member, limit_s)
            lost = {m.node for m in together}
            heard = {m.node for m in servers if m.seen > member.seen + limit_s / 2 and m.node not in lost}
            sets = [placement.copies(block) for block in range(len(placement.owners))]
            if heard and all(heard & set(copies) for copies in sets if lost.intersection(copies)):
                host = member.host if len(together) > 1 else ""
                return [Evicted(together, f"silent for {silent_s:.1f} s", host)]
        return []

    def sessions_lost(self, nodes: Collection[NodeId]) -> list[Output]:
        """Evict a host whose processes have all lost their sessions here, if other hosts have its blocks.

        `nodes` are all processes without a session. One that loses its session alone may connect again. If no process
        of another host has a session, the coordinator itself is cut off, or the run ends.
        """
        if self._placed.placement is None or self._identity.failure is not None:
            return []
        members = self._members
        for host in members.hosts:
            mates = members.of_host(host)
            others = [m for m in members.members.values() if m.host and m.host != host and m.node not in nodes]
            if len(mates) < 2 or not others or any(m.node not in nodes for m in mates):
                continue
            if self._placement.can_spare(*(m.node for m in mates)):
                return [Evicted(tuple(mates), "the connections to all its processes broke", host)]
        return []

    def probe(self) -> list[Output]:
        """Ask servers to try again to reach the peers that they could not reach."""
        now = self._clock.now
        if now < self._next_try:
            return []
        self._next_try = now + _TRY_S
        servers = {m.node: m.address or "" for m in self._members.by_role("server")}
        pairs = [(node, peer) for node, peer in self._reach.untried(now) if node in servers and peer in servers]
        for node, peer in pairs:
            self._reach.report(node, peer, now, UNTIL_TRIED_S)  # the report counts until the server reaches its peer
        return [Send(node, Probe(self._identity.generation, peer, servers[peer])) for node, peer in pairs]

    def recheck(self) -> list[Output]:
        """Find the workers that are no longer cut off: a report counts for a limited time."""
        before = self._reach.cut_off
        if not before:
            return []
        out = self._note_cut_off()
        return out if self._reach.cut_off == before else [*out, WorkFreed()]

    def fail_if_stuck(self) -> list[Output]:
        """Fail the job when every worker has been cut off from some primary for `_GIVE_UP_S`."""
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
