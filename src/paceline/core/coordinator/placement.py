"""Placement: which server holds which blocks. Rule 5.

A change is a new placement epoch: it is durable first, then all work that was not committed under the old one is void.
`in_sync_sets` decides which copies count and which may be promoted, `reachability` which servers are evicted, and
`rebalance` which blocks move to other servers.
"""

from __future__ import annotations

import msgspec

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator.all_tables import Tables
from paceline.core.coordinator.events import (
    BlocksLost,
    BlocksMayMove,
    BlocksPlaced,
    CopiesDiffer,
    IncarnationBegan,
    MembersRemoved,
    ModelAgreed,
    Output,
    PlacementDecided,
    ServerJoined,
    ServersWanted,
    WorkerJoined,
    WorkFreed,
)
from paceline.core.coordinator.holders import holders, wanted_holders
from paceline.core.coordinator.host_loss import silence_s, suspects
from paceline.core.coordinator.in_sync_sets import Backups, Joining, Owners, enter, only_whole, promote, shrink
from paceline.core.coordinator.machine_kinds import kind_of_workers, workers_differ
from paceline.core.coordinator.placement_plan import Servers, balance, spread
from paceline.core.coordinator.segments import Segments
from paceline.core.coordinator.tables.members import Member, Members
from paceline.core.effects import History, PlacementFact, Send
from paceline.messages import Assign, Copied, CopyOver, PlacementRequest, Position, Prepared
from paceline.types import NodeId, Placement, is_member, name_of

DIFFERENT = "are not equal to their primaries'"
"""The end of the reason for a change of placement when copies are not equal to their primaries'."""

_PATIENCE_S = 3.0  # seconds that the job waits for a new server before it makes lost copies on other servers
_AGAIN_S = 0.25  # seconds until copies that left an in-sync set are made again
_MOST_NEAR = 8  # members on one host: with more, each would read more bytes than a ring moves


class BlockPlacement:
    """Decides the first placement of an incarnation and each later one, and tells the servers."""

    def __init__(self, tables: Tables, segments: Segments) -> None:
        self._clock = tables.clock
        self._identity = tables.identity
        self._incarnation = tables.incarnation
        self._leases = tables.leases
        self._log = tables.log
        self._members = tables.members
        self._placed = tables.placed
        self._reach = tables.reach
        self._reducers = tables.reducers
        self._segments = segments
        self._prepare_waiting: dict[NodeId, int] = {}
        self.dissolved = False

    def restore(self, history: History) -> list[Output]:
        """Take over the last placement from the log."""
        self._placed.restore(history)
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Forget the placement. Workers that wait for a placement keep waiting."""
        self._placed.reset(position)
        return []

    # ------------------------------------------------------------ what servers and workers are told

    def assignment(self) -> Assign:
        """The message that tells a server the placement, the model and the state to start from."""
        placement, model = self._placed.placement, self._identity.model
        assert placement is not None
        assert model is not None
        assign = Assign(
            self._identity.generation,
            self._incarnation.number,
            placement,
            model,
            self._identity.blocks,
            self._identity.one_attempt or self._placed.one_attempt,
            self._leases.hold,
            at=self._log.version,
            begun=(self._log.watermark.low, self._log.watermark.above),
        )
        base = self._incarnation.base
        if base is None:
            return assign
        at = base.position
        return msgspec.structs.replace(
            assign, folder=base.folder, version=at.version, watermark=at.watermark, above=at.above
        )

    def _tell(self, servers: list[Member]) -> list[Output]:
        out: list[Output] = []
        for server in servers:
            out += [Send(server.node, self.assignment()), Send(server.node, self._segments.plan())]
        return out

    def where(self, sender: NodeId, message: PlacementRequest) -> list[Output]:
        """Answer a worker that asks for the current placement."""
        placement = self._placed.placement
        return [] if placement is None else [self._prepared(sender, message.req, placement)]

    def _prepared(self, node: NodeId, req: int, placement: Placement) -> Send:
        generation, incarnation = self._identity.generation, self._incarnation.number
        return Send(node, Prepared(req, generation, incarnation, placement, tuple(self._placed.firsts.items())))

    # ------------------------------------------------------------ the first placement

    def model_agreed(self, event: ModelAgreed) -> list[Output]:
        """Note that a worker waits for the placement, and place the blocks if possible."""
        self._prepare_waiting[event.worker] = event.req
        return self.place()

    def server_joined(self, event: ServerJoined) -> list[Output]:
        """Place the blocks if this was the last server that the first placement waited for."""
        return self.place()

    def servers_wanted(self, event: ServersWanted) -> list[Output]:
        """Place the blocks if the first placement now has as many servers as are wanted."""
        return self.place()

    def incarnation_began(self, event: IncarnationBegan) -> list[Output]:
        """Place the blocks of the new incarnation."""
        return self.place()

    def place(self, *, short: bool = False) -> list[Output]:
        """Place the blocks once the model is known and all wanted servers have joined; answer the workers that wait.

        With `short`, do not wait for servers that are wanted and have not joined.
        """
        if self._identity.model is None:
            return []
        out: list[Output] = []
        if self._placed.placement is None:
            leaving, grouped = self._members.draining, self._reducers.wanted
            there = holders(self._members, grouped=grouped)
            servers = [s for s in there if s.node not in leaving]
            # Servers of draining hosts are there, but get no blocks: the job does not wait for others in their place.
            drained = sum(self._members.is_draining(s.node) for s in there)
            if not servers or (not short and len(servers) + drained < wanted_holders(self._members, grouped=grouped)):
                return []
            nodes, blocks = [s.node for s in servers], self._identity.blocks
            owners = balance(blocks, nodes)
            hosts = {s.node: s.host for s in servers}
            replicas = self.replicas(grouped=grouped)
            backups = spread(blocks, owners, Servers(staying=tuple(nodes), replicas=replicas, hosts=hosts))
            addresses = {s.node: s.address or "" for s in servers}
            placement = Placement(self._placed.epoch + 1, owners, addresses, backups)
            placement = _with_group(placement, self._identity.spec, self._members) if grouped else placement
            whole, kind = workers_differ(self._members), kind_of_workers(self._members)
            self._placed.set(placement, self._log.version, whole_attempts=whole, kind=kind)
            fact = PlacementFact(placement, whole_attempts=whole, kind=kind)
            out += [fact, *self._tell(servers), BlocksPlaced(), WorkFreed()]
        placed = self._placed.placement
        assert placed is not None
        out += [self._prepared(node, req, placed) for node, req in self._prepare_waiting.items()]
        self._prepare_waiting.clear()
        return out

    # ------------------------------------------------------------ one placement follows another

    def change(
        self,
        owners: Owners,
        backups: Backups,
        joining: Joining = (),
        *,
        why: str,
        failover: bool = False,
        planned: bool = False,
        grouped: bool | None = None,
    ) -> list[Output]:
        """Decide a new epoch: it becomes durable, then uncommitted work is void, then every server is told.

        Its holders sum as a group if `grouped`; None keeps what the epoch before had. A group in which no member has
        every block is none: the holders act as servers until the blocks move.
        """
        old = self._placed.placement
        assert old is not None
        grouped = bool(old.group) if grouped is None else grouped
        if grouped:
            owners, backups = only_whole(owners, backups)
        placement = Placement(self._placed.epoch + 1, owners, {}, backups, joining)
        placement = _with_group(placement, self._identity.spec, self._members) if grouped else placement
        known = old.addresses | {m.node: m.address or "" for m in self._members.by_role("server")}
        addresses = {node: known.get(node, "") for node in placement.holders}
        placement = msgspec.structs.replace(placement, addresses=addresses)
        whole, kind = workers_differ(self._members), kind_of_workers(self._members)
        fact = PlacementFact(placement, why, failover, planned, whole, kind)
        return [fact, PlacementDecided(placement, failover, whole, kind)]

    def replicas(self, *, grouped: bool) -> int:
        """How many copies each block should have besides its primary: in a group, on all members."""
        return len(holders(self._members, grouped=True)) if grouped else self._identity.spec.replicas

    def regroup(self, why: str) -> list[Output]:
        """Begin a new epoch with the same copies. Copies that are being made are started again later."""
        old = self._placed.placement
        assert old is not None
        return [BlocksMayMove(_AGAIN_S), *self.change(old.owners, old.backups, why=why, planned=True)]

    def part_with(self, *nodes: NodeId, why: str) -> list[Output]:
        """Take members out of every in-sync set, and so out of the group; [] if the job cannot spare them."""
        placement = self._placed.placement
        assert placement is not None
        found = self._without(placement, frozenset(nodes))
        return [] if found is None else [BlocksMayMove(_AGAIN_S), *self.change(*found, why=why, planned=True)]

    def dissolve(self) -> None:
        """Count no loss from now on, and plan nothing: the job is over, and its members end."""
        self.dissolved = True

    def enact(self, event: PlacementDecided) -> list[Output]:
        """Put the new placement into force, and tell every server."""
        whole, kind = event.whole_attempts, event.kind
        self._placed.set(event.placement, self._log.version, failover=event.failover, whole_attempts=whole, kind=kind)
        return self._tell(self._members.by_role("server"))

    def worker_joined(self, event: WorkerJoined) -> list[Output]:
        """Begin a new epoch if the machine of the new worker is not that of all workers of this epoch (rule 12).

        The worker gets no lease before: a server may not count attempts of unequal workers as interchangeable. A worker
        that is gone may have left attempts on the servers; the new epoch makes them void.
        """
        old, job = self._placed.placement, self._identity.job
        kind = self._members.members[event.node].fingerprint
        if old is None or job is None or kind in ("", self._placed.kind):
            return []
        if self._identity.one_attempt or self._placed.one_attempt or self._identity.failure is not None:
            return []  # slots count as whole attempts anyway; with a window they do, but the mode may change
        if not self._placed.kind:
            self._placed.set(old, self._log.version, whole_attempts=False, kind=kind)
            why = f"{self._members.name(event.node)} is the first worker of this epoch"
            return [PlacementFact(old, why, planned=True, kind=kind)]
        why = f"{self._members.name(event.node)} has another kind of machine than other workers"
        return [BlocksMayMove(_AGAIN_S), *self.change(old.owners, old.backups, why=why, planned=True)]

    def members_removed(self, event: MembersRemoved) -> list[Output]:
        """Promote backups of lost servers; if one of their blocks has no other copy, the blocks are lost."""
        placement = self._placed.placement
        for member in event.members:
            self._prepare_waiting.pop(member.node, None)
        lost = [m for m in event.members if m.role == "server" and m.node in self._placed.holders]
        if not lost or self._identity.failure is not None or self.dissolved:
            return []
        assert placement is not None
        name = f"host {event.host}" if event.host else lost[0].name
        found = self._without(placement, frozenset(m.node for m in lost))
        if found is None:
            return [BlocksLost(name, event.why)]
        grouped = self._placed.grouped
        present = len(holders(self._members, grouped=grouped))
        patience_s = _PATIENCE_S if present < wanted_holders(self._members, grouped=grouped) else 0.0
        if event.left:
            why = f"{name} leaves ({event.why})"
            return [BlocksMayMove(_AGAIN_S), *self.change(*found, why=why, planned=True)]
        failover = any(m.node in placement.owners for m in lost)
        why = f"{name} is lost ({event.why})"
        return [BlocksMayMove(patience_s), *self.change(*found, why=why, failover=failover)]

    def _without(self, placement: Placement, lost: frozenset[NodeId]) -> tuple[Owners, Backups] | None:
        alive = frozenset(m.node for m in self._members.by_role("server"))
        now, limit_s = self._clock.now, silence_s(self._identity.spec)
        last = suspects(self._members, self._reach.cuts(now), now, limit_s)
        return promote(self._identity.blocks, placement, lost, alive, last)

    def can_spare(self, *servers: NodeId) -> bool:
        """Whether every block of `servers` has another member in its in-sync set."""
        placement = self._placed.placement
        assert placement is not None
        return self._without(placement, frozenset(servers)) is not None

    # ------------------------------------------------------------ copies

    def copied(self, sender: NodeId, message: Copied) -> list[Output]:
        """Make a server whose copies are complete a member of these in-sync sets, durably, before it is told."""
        old = self._placed.placement
        if not self._placed.is_current(message.incarnation, message.epoch) or old is None:
            return []
        over = Send(sender, CopyOver(self._identity.generation, message.incarnation, message.epoch, message.source))
        backups, joining = enter(old, sender, message.source)
        if joining == old.joining:
            return [over]
        placement = msgspec.structs.replace(old, backups=backups, joining=joining)
        whole, kind = self._placed.whole_attempts, self._placed.kind
        self._placed.set(placement, self._log.version, whole_attempts=whole, kind=kind)
        why = f"{name_of(sender)} has its copies"
        fact = PlacementFact(placement, why, planned=True, whole_attempts=whole, kind=kind)
        return [fact, over, BlocksMayMove(0.0)]

    def copies_differ(self, event: CopiesDiffer) -> list[Output]:
        """Remove copies that differ from their primaries from the in-sync sets; they are made again."""
        names = " and ".join(sorted(map(name_of, event.found)))
        return self.shrink(event.found, f"copies on {names} {DIFFERENT}")

    def shrink(self, without: dict[NodeId, frozenset[int]], why: str) -> list[Output]:
        """Remove each server of `without` from the in-sync sets of its blocks there.

        Copies that are being made are started again later.
        """
        old = self._placed.placement
        assert old is not None
        backups = shrink(old, without)
        return [] if backups is None else [BlocksMayMove(_AGAIN_S), *self.change(old.owners, backups, why=why)]


def _with_group(placement: Placement, spec: ClusterSpec, members: Members) -> Placement:
    """`placement` with its group: the members that have every block.

    The group is near if its members are on one host and share memory, so that each may add all slots.
    """
    group, known = tuple(filter(is_member, placement.everywhere)), members.members
    hosts = {known[node].host if node in known else "" for node in group}
    near = spec.shares_memory and len(group) <= _MOST_NEAR and len(hosts) == 1 and "" not in hosts
    return msgspec.structs.replace(placement, group=group, near=near)
