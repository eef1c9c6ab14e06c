"""Builds the part of the status that says which servers hold the blocks."""

from __future__ import annotations

from collections.abc import Collection

from paceline.messages.status import PlacementStatus
from paceline.types import NodeId, Placement, name_of


def placed(placement: Placement | None, replicas: int) -> PlacementStatus:
    """Count the blocks of each server, and as `short` the blocks with fewer than `replicas` backups."""
    if placement is None:
        return PlacementStatus()
    held: dict[str, list[int]] = {}
    short = 0
    for block, owner in enumerate(placement.owners):
        held.setdefault(name_of(owner), [0, 0])[0] += 1
        backups = placement.copies(block)[1:]
        short += len(backups) < replicas
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
