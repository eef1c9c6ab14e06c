"""Which server should hold which block: the owner and the backups of each block, balanced by bytes. Pure functions.

For a new job, `balance` chooses the owners and `spread` the backups. Later, `settle` chooses the best owners and
backups from the copies that exist, and drops surplus copies. `joins` names the copies to make next: first for blocks
with too few copies on the servers that stay, then to even out the load. A caller that repeats `settle` and `joins`
reaches a placement that neither function changes. The module `in_sync_sets` changes the sets when a server is lost.

Copies of a block go to different hosts while there are enough (rule 14). A block whose copies are on too few hosts
lacks a copy; of surplus copies, one on a host with another copy goes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from paceline.core.coordinator.in_sync_sets import Backups, Joining, Owners, normal
from paceline.types import BlockSpec, NodeId, Placement

BATCH_NBYTES = 256 << 20
"""The most bytes of copies that `joins` names at once, except that a larger block may be copied alone."""

_UNEVEN = 0.2  # fraction of the mean load: no block moves between two servers whose loads differ by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers of the job: those that stay, in order, and those that leave.

    `barred` lists pairs of servers that cannot reach each other, `unfit` the servers that some worker cannot reach.
    `hosts` names the host of each server; servers that it does not name are on one host.
    """

    staying: tuple[NodeId, ...]
    leaving: frozenset[NodeId] = frozenset()
    replicas: int = 0
    barred: frozenset[tuple[NodeId, NodeId]] = frozenset()
    unfit: frozenset[NodeId] = frozenset()
    hosts: Mapping[NodeId, str] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        """The number of copies that each block should have."""
        return min(self.replicas + 1, len(self.staying))

    @property
    def span(self) -> int:
        """The number of hosts on which each block should have a copy."""
        return min(self.replicas + 1, len(self.by_host))

    @property
    def by_host(self) -> dict[str, list[NodeId]]:
        """The servers that stay, by host."""
        found: dict[str, list[NodeId]] = {}
        for server in self.staying:
            found.setdefault(self.host(server), []).append(server)
        return found

    def host(self, server: NodeId) -> str:
        """The host of `server`."""
        return self.hosts.get(server, "")

    def surplus(self, members: Sequence[NodeId]) -> list[NodeId]:
        """The members of a set of which one goes first: those on a host with another member, or all without such."""
        hosts = [self.host(m) for m in members]
        return [m for m, host in zip(members, hosts, strict=True) if hosts.count(host) > 1] or list(members)

    @property
    def suspects(self) -> frozenset[NodeId]:
        """Servers that another server cannot reach: a block that lacks a copy gets it there last."""
        return frozenset(peer for _, peer in self.barred)

    def reach(self, a: NodeId, b: NodeId) -> bool:
        """False if a report says that servers `a` and `b` cannot reach each other, else True."""
        return (a, b) not in self.barred and (b, a) not in self.barred


def balance(blocks: Sequence[BlockSpec], servers: Sequence[NodeId]) -> Owners:
    """Owners for a new placement, balanced by bytes: the largest block goes to the least loaded server.

    Deterministic for the same blocks and the same order of servers.
    """
    load = [(0, i) for i in range(len(servers))]
    heapify(load)
    owners = [""] * len(blocks)
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.index)):
        nbytes, i = load[0]
        owners[block.index] = servers[i]
        heapreplace(load, (nbytes + block.nbytes, i))
    return tuple(owners)


def spread(blocks: Sequence[BlockSpec], owners: Owners, servers: Servers) -> Backups:
    """Backups for a new placement, on hosts without a copy first, balanced by bytes; () without replicas."""
    if not servers.replicas:
        return ()
    load = dict.fromkeys(servers.staying, 0)
    for block in blocks:
        load[owners[block.index]] += block.nbytes
    found: list[tuple[NodeId, ...]] = [()] * len(blocks)
    for block in sorted(blocks, key=lambda b: (-b.nbytes, b.index)):
        members = [owners[block.index]]
        while len(members) < servers.copies:
            used = {servers.host(m) for m in members}
            others = (s for s in servers.staying if s not in members)
            members.append(min(others, key=lambda s: (servers.host(s) in used, load[s])))
            load[members[-1]] += block.nbytes
        found[block.index] = tuple(members[1:])
    return tuple(found)


def settle(blocks: Sequence[BlockSpec], placement: Placement, servers: Servers) -> tuple[Owners, Backups]:
    """Choose the best owners and backups from the copies that exist: drop surplus copies, and make no copy."""
    load = _loads(blocks, placement, servers)
    sets: list[list[NodeId]] = []
    for block in blocks:
        members = list(placement.copies(block.index))
        staying = sum(m in load for m in members)
        while len(members) > servers.copies and staying:
            leaving = [m for m in members if m not in load]
            if leaving:
                members.remove(leaving[-1])
                continue
            surplus = max(servers.surplus(members), key=lambda m: (load[m], m != placement.owners[block.index]))
            load[surplus] -= block.nbytes
            members.remove(surplus)
        sets.append(members)
    owners = _roles(blocks, placement.owners, sets, servers)
    return owners, normal([tuple(m for m in sets[b.index] if m != owners[b.index]) for b in blocks])


def _roles(blocks: Sequence[BlockSpec], before: Owners, sets: Sequence[Sequence[NodeId]], servers: Servers) -> Owners:
    """Choose the owner of each block among the servers of `sets`.

    The present owner stays, unless it leaves, is unfit, has no copy any more, or serves many more bytes than another
    server with a copy.
    """
    owners = list(before)
    serving = {s: 0 for s in servers.staying if s not in servers.unfit}
    for block in blocks:
        if owners[block.index] in serving and owners[block.index] in sets[block.index]:
            serving[owners[block.index]] += block.nbytes
    for block in blocks:
        members = sets[block.index]
        if owners[block.index] in serving and owners[block.index] in members:
            continue
        heirs = [m for m in members if m in serving] or [m for m in members if m in servers.staying]
        if not heirs and owners[block.index] in members:
            continue
        owners[block.index] = min(heirs or members, key=lambda m: serving.get(m, 0))
        if owners[block.index] in serving:
            serving[owners[block.index]] += block.nbytes
    if len(serving) < 2:
        return tuple(owners)
    mean = sum(serving.values()) / len(serving)
    for _ in range(len(serving) ** 2):
        most, least = max(serving, key=lambda s: serving[s]), min(serving, key=lambda s: serving[s])
        if serving[most] - serving[least] <= _UNEVEN * mean:
            break
        for block in blocks:
            gap = serving[most] - serving[least]
            members = sets[block.index]
            if owners[block.index] != most or least not in members or block.nbytes >= gap:
                continue
            if all(servers.reach(least, m) for m in members if m != least):
                owners[block.index] = least
                serving[most] -= block.nbytes
                serving[least] += block.nbytes
    return tuple(owners)


def joins(blocks: Sequence[BlockSpec], placement: Placement, servers: Servers, limit: int = BATCH_NBYTES) -> Joining:
    """Name the copies to make next, of about `limit` bytes at most.

    Blocks that lack a copy come first. If there is no copy to make for them, the copies even out the load.
    """
    return missing(blocks, placement, servers, limit) or _named(
        _even_out(blocks, placement, servers, _loads(blocks, placement, servers), limit)
    )


def missing(blocks: Sequence[BlockSpec], placement: Placement, servers: Servers, limit: int = BATCH_NBYTES) -> Joining:
    """Name the copies that blocks lack on `servers`, of about `limit` bytes at most; () if they lack none."""
    load = _loads(blocks, placement, servers)
    wanted: dict[NodeId, list[int]] = {}
    budget = limit
    for block in blocks:
        for server in _missing(block, placement, servers, load):
            if budget < block.nbytes and wanted:
                break
            budget -= block.nbytes
            load[server] += block.nbytes
            wanted.setdefault(server, []).append(block.index)
    return _named(wanted)


def _named(wanted: Mapping[NodeId, Sequence[int]]) -> Joining:
    return tuple((server, tuple(sorted(mine))) for server, mine in sorted(wanted.items()))


def _missing(block: BlockSpec, placement: Placement, servers: Servers, load: Mapping[NodeId, int]) -> Sequence[NodeId]:
    """The servers that should get a copy of `block`, because it has too few copies or is on too few hosts."""
    owner, members = placement.owners[block.index], placement.copies(block.index)
    staying = [m for m in members if m in load]
    used = {servers.host(m) for m in staying}
    copies, hosts = servers.copies - len(staying), servers.span - len(used)
    others = (
        [s for s in servers.staying if s not in members and servers.reach(owner, s)] if max(copies, hosts) > 0 else []
    )
    found: list[NodeId] = []
    while others and (copies > 0 or hosts > 0):
        if copies <= 0:  # another copy on a host that has one would not help
            others = [s for s in others if servers.host(s) not in used]
            if not others:
                break
        best = min(others, key=lambda s: (s in servers.suspects, servers.host(s) in used, load[s]))
        others.remove(best)
        found.append(best)
        copies -= 1
        hosts -= servers.host(best) not in used
        used.add(servers.host(best))
    return found


def _even_out(
    blocks: Sequence[BlockSpec], placement: Placement, servers: Servers, load: dict[NodeId, int], limit: int
) -> dict[NodeId, list[int]]:
    """Name copies that move load between any two servers, then between the servers of each host."""
    wanted: dict[NodeId, list[int]] = {}
    budget = limit
    mean = sum(load.values()) / max(1, len(load))
    taken: set[int] = set()
    by_host = servers.by_host
    for group in [list(servers.staying), *(by_host.values() if len(by_host) > 1 else ())]:
        for _ in range(len(group) ** 2):
            most, least = max(group, key=lambda s: load[s]), min(group, key=lambda s: load[s])
            if load[most] - load[least] <= _UNEVEN * mean:
                break
            for block in blocks:
                members = placement.copies(block.index)
                if most not in members or least in members or block.index in taken:
                    continue
                if block.nbytes >= load[most] - load[least] or budget < block.nbytes:
                    continue
                if not servers.reach(placement.owners[block.index], least):
                    continue
                if most not in servers.surplus((*members, least)):
                    continue  # `settle` would then drop another copy than that of `most`
                budget -= block.nbytes
                taken.add(block.index)
                load[most] -= block.nbytes
                load[least] += block.nbytes
                wanted.setdefault(least, []).append(block.index)
    return wanted


def _loads(blocks: Sequence[BlockSpec], placement: Placement, servers: Servers) -> dict[NodeId, int]:
    """The bytes of all copies on each server that stays."""
    load = dict.fromkeys(servers.staying, 0)
    for block in blocks:
        for member in placement.copies(block.index):
            if member in load:
                load[member] += block.nbytes
    return load
