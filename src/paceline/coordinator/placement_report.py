"""Where the blocks are, for people and engines: who holds how many, and which lack a copy."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from paceline.types import NodeId, Placement, name_of


def placed(placement: Placement | None, replicas: int) -> dict[str, Any]:
    """The placement in figures.

    `servers` has, by name, of how many blocks a server is the primary and a backup; `short` blocks have fewer than
    `replicas` backups, and `building` copies are being made.
    """
    held: dict[str, list[int]] = {}
    if placement is None:
        return {"epoch": 0, "blocks": 0, "servers": held, "short": 0, "building": 0}
    short = 0
    for block, owner in enumerate(placement.owners):
        held.setdefault(name_of(owner), [0, 0])[0] += 1
        backups = placement.copies(block)[1:]
        short += len(backups) < replicas
        for backup in backups:
            held.setdefault(name_of(backup), [0, 0])[1] += 1
    building = sum(len(blocks) for _, blocks in placement.joining)
    return {
        "epoch": placement.epoch,
        "blocks": len(placement.owners),
        "servers": held,
        "short": short,
        "building": building,
    }


def drained(placement: Placement | None, draining: Collection[NodeId]) -> list[str]:
    """Names of the servers that are to leave and hold nothing any more."""
    holders = () if placement is None else placement.holders
    return sorted(name_of(node) for node in draining if node not in holders)
