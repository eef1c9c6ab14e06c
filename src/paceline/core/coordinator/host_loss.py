"""Which processes are lost together, because their host is. Pure functions of rule 14.

A host is lost when no process of it is heard while processes of other hosts are. The loss is then one event, with one
change of placement. A job whose processes are all on one host has no such loss: each process is lost alone.
"""

from __future__ import annotations

from collections.abc import Collection

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator.tables.members import Member, Members
from paceline.types import NodeId

_BEATS = 5  # a process may miss this many heartbeats in a row before it counts as silent


def silence_s(spec: ClusterSpec) -> float:
    """After how many seconds without a sign of life a server with copies elsewhere, or a whole host, counts as lost."""
    return max(spec.reach_s, _BEATS * spec.heartbeat_s)


def lost_with(members: Members, member: Member, limit_s: float) -> tuple[Member, ...]:
    """All members of the host of `member`, which is silent, if its whole host is; otherwise `member` alone.

    The host of a member that is known only from the log is not known: it is lost alone.
    """
    mates = members.of_host(member.host)
    is_host = (
        bool(mates)
        and all(m.seen <= member.seen + limit_s / 2 for m in mates)
        and _is_heard_elsewhere(members, mates, limit_s)
    )
    return tuple(mates) if is_host else (member,)


def silent_hosts(members: Members, now: float, limit_s: float) -> dict[str, list[Member]]:
    """The members of each host of which no process was heard for `limit_s`, while processes of other hosts were."""
    found = {}
    for host in members.hosts if len(members.hosts) > 1 else ():
        mates = members.of_host(host)
        if all(now - m.seen > limit_s for m in mates) and _is_heard_elsewhere(members, mates, limit_s):
            found[host] = mates
    return found


def _is_heard_elsewhere(members: Members, mates: Collection[Member], limit_s: float) -> bool:
    """Whether a process of another host was heard for some time after the last sign of life of `mates`."""
    last = max((m.seen for m in mates), default=0.0)
    hosts = {m.host for m in mates}
    return any(m.host and m.host not in hosts and m.seen > last + limit_s / 2 for m in members.members.values())


def is_cut_off(members: Members, now: float, limit_s: float) -> bool:
    """Whether the coordinator is probably cut off itself: it hears no process of several hosts."""
    return len(members.hosts) > 1 and all(now - m.seen > limit_s for m in members.members.values())


def suspects(
    members: Members, cuts: Collection[tuple[NodeId, NodeId]], now: float, limit_s: float
) -> frozenset[NodeId]:
    """The members of hosts that another host cannot reach, or that are silent: they may be lost next."""
    if len(members.hosts) < 2:
        return frozenset()
    host = {m.node: m.host for m in members.members.values()}
    bad = {host[peer] for node, peer in cuts if host.get(node) and host.get(peer) and host[node] != host[peer]}
    bad |= {name for name in members.hosts if all(now - m.seen > limit_s / 2 for m in members.of_host(name))}
    return frozenset(node for node, name in host.items() if name in bad)
