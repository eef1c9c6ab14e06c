"""The in-sync set of each block: its owner and the backups that have every commit. Pure functions of rule 5.

A copy leaves the in-sync set, durably, before a commit is made without it: `shrink`. A server enters a set when its
copy is complete: `enter`. Only a member of the in-sync set may be promoted: `promote`. `placement` calls these and
makes the result durable before it tells any server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from paceline.types import BlockSpec, NodeId, Placement, is_member

Owners = tuple[NodeId, ...]
"""The owner (primary) of each block."""

Backups = tuple[tuple[NodeId, ...], ...]
"""The other members of the in-sync set of each block; () if no block has any."""

Joining = tuple[tuple[NodeId, tuple[int, ...]], ...]
"""Servers that are making copies, each with the blocks that it copies."""


def promote(
    blocks: Sequence[BlockSpec],
    placement: Placement,
    lost: frozenset[NodeId],
    alive: frozenset[NodeId],
    suspects: Collection[NodeId] = (),
) -> tuple[Owners, Backups] | None:
    """The owners and backups after the loss of the servers `lost`, in one change.

    In each in-sync set that loses its owner, the living member with the least load is promoted. Holders of another kind
    than the owner (servers, members of workers) come behind, and the `suspects`, which may be lost as well, last.
    Returns None if a set has no living member left: only a member of the in-sync set may be promoted.
    """
    load = dict.fromkeys(alive, 0)
    for block in blocks:
        owner = placement.owners[block.index]
        if owner not in lost and owner in load:
            load[owner] += block.nbytes
    owners = list(placement.owners)
    backups: list[tuple[NodeId, ...]] = []
    for block in blocks:
        members = [m for m in placement.copies(block.index) if m not in lost and m in alive]
        if not members:
            return None
        if owners[block.index] not in members:
            kind = is_member(owners[block.index])
            alike = [m for m in members if m not in suspects and is_member(m) == kind]
            heir = min(alike or members, key=lambda m: (m in suspects, load[m]))
            owners[block.index] = heir
            load[heir] += block.nbytes
        backups.append(tuple(m for m in members if m != owners[block.index]))
    return tuple(owners), normal(backups)


def shrink(placement: Placement, without: Mapping[NodeId, frozenset[int]]) -> Backups | None:
    """The backups after each server of `without` has left the in-sync sets of its blocks there.

    None if nothing changes: the servers are in none of these sets, and make no copies.
    """
    sets = enumerate(placement.backups)
    backups = normal([tuple(m for m in members if block not in without.get(m, ())) for block, members in sets])
    is_copying = any(server in without for server, _ in placement.joining)
    return None if backups == placement.backups and not is_copying else backups


def enter(placement: Placement, server: NodeId, source: NodeId) -> tuple[Backups, Joining]:
    """The backups, and the copies still being made, after `server` has copied its blocks from their owner `source`."""
    backups = list(placement.backups or [()] * len(placement.owners))
    left: list[tuple[NodeId, tuple[int, ...]]] = []
    for copier, blocks in placement.joining:
        done = [b for b in blocks if copier == server and placement.owners[b] == source]
        for block in done:
            backups[block] = (*backups[block], server)
        rest = tuple(b for b in blocks if b not in done)
        if rest:
            left.append((copier, rest))
    return normal(backups), tuple(left)


def only_whole(owners: Owners, backups: Backups) -> tuple[Owners, Backups]:
    """The in-sync sets of a group: every owner has every block, and members that lack some block leave the sets.

    A group commits by the members that have every block: another owner would miss these commits. Copies on servers
    stay: their owners send them each sum. The sets are as given if no member has every block.
    """
    sets = [(owner, *(backups[block] if backups else ())) for block, owner in enumerate(owners)]
    whole = set.intersection(*map(set, sets)) if sets else set()
    members = sorted(filter(is_member, whole))
    if not members:
        return owners, backups
    owned = {member: sum(owner == member for owner in owners) for member in members}
    chosen: list[NodeId] = []
    for owner in owners:
        heir = owner if owner in owned else min(owned, key=owned.__getitem__)
        owned[heir] += heir != owner
        chosen.append(heir)
    copies = [[*members, *(node for node in nodes if not is_member(node))] for nodes in sets]
    return tuple(chosen), normal([tuple(n for n in ns if n != o) for ns, o in zip(copies, chosen, strict=True)])


def normal(backups: Sequence[tuple[NodeId, ...]]) -> Backups:
    """`backups` as a tuple; () if no block has a backup."""
    return tuple(backups) if any(backups) else ()
