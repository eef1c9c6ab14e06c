"""Which server holds which block."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

from paceline.types import BlockSpec, NodeId


def balance(blocks: Sequence[BlockSpec], servers: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Owners of `blocks`, balanced by bytes: the largest block goes to the least loaded server.

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


def owned(owners: Sequence[NodeId], server: NodeId) -> tuple[int, ...]:
    """The blocks of `server`, in order."""
    return tuple(b for b, owner in enumerate(owners) if owner == server)
