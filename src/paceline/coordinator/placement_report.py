"""Builds the parts of the status that say which servers hold the blocks, and which hosts are empty."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline.core.coordinator.all_tables import Tables
from paceline.messages.status import PlacementStatus
from paceline.types import NodeId, Placement, name_of


def placed(placement: Placement | None, replicas: int, hosts: Mapping[NodeId, str] | None = None) -> PlacementStatus:
    """Count the blocks of each server, and as `short` the blocks that lack a copy.

    These have fewer than `replicas` backups, or are on fewer hosts than they could be. `hosts` names the hosts of the
    servers that stay.
    """
    if placement is None:
        return PlacementStatus()
    hosts = hosts or {}
    span = min(replicas + 1, len(set(hosts.values())))
    held: dict[str, list[int]] = {}
    short = 0
    for block, owner in enumerate(placement.owners):
        held.setdefault(name_of(owner), [0, 0])[0] += 1
        backups = placement.copies(block)[1:]
        short += len(backups) < replicas or len({hosts[s] for s in (owner, *backups) if s in hosts}) < span
        for backup in backups:
            held.setdefault(name_of(backup), [0, 0])[1] += 1
    return PlacementStatus(
        epoch=placement.epoch,
        blocks=len(placement.owners),
        servers={name: (primary, backup) for name, (primary, backup) in held.items()},
        short=short,
        building=sum(len(blocks) for _, blocks in placement.joining),
    )


def drained(placement: Placement | None, draining: Collection[NodeId]) -> tuple[str, ...]:
    """Names of the `draining` servers, which must leave, that hold no block any more."""
    holders = () if placement is None else placement.holders
    return tuple(sorted(name_of(node) for node in draining if node not in holders))


def drained_hosts(tables: Tables) -> tuple[str, ...]:
    """The draining hosts whose servers hold no block and whose workers have no lease."""
    members = tables.members
    if tables.incarnation.awaited:  # servers of these hosts may not have registered yet
        return ()
    busy = set(tables.placed.holders) | {node for node, _ in tables.rounds.held()}
    return tuple(host for host in sorted(members.draining_hosts) if not _is_used(tables, host, busy))


def _is_used(tables: Tables, host: str, busy: Collection[NodeId]) -> bool:
    nodes = [m.node for m in tables.members.of_host(host)]
    leases = tables.leases
    return any(n in busy or leases.live.held_by(n) or leases.reserved.has(n) for n in nodes)
