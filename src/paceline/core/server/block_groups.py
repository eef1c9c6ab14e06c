"""Blocks on this server that have the same primary: this server itself, or another server whose blocks it copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from paceline.core.hash_chain import START, extend
from paceline.core.server.block_store import BlockStore
from paceline.types import BlockSpec, Commit, Fence, ModelSpec, NodeId, Placement


class BlockGroup:
    """Some blocks in a store of their own, and their hash chains."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self.blocks: dict[int, BlockSpec] = {}
        self.chains: dict[int, bytes] = {}

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Allocate `blocks`, which have no values yet, and forget all others."""
        self.blocks = {b.index: b for b in blocks}
        self.chains = dict.fromkeys(self.blocks, START)
        self.store.open(spec, blocks)

    def load(self, folder: str, version: int) -> None:
        """Fill the open blocks from a checkpoint of `version`.

        Raises:
            CheckpointError: the checkpoint is damaged or missing.
        """
        self.chains.update(self.store.checkpoints.load(folder, version))

    def copy_in(self, chains: Iterable[tuple[int, bytes]]) -> None:
        """Set the hash chains of blocks that another server has sent."""
        self.chains.update(chains)

    def extend(self, commit: Commit, fences: tuple[Fence, ...]) -> None:
        """Add `commit`, made of the attempts that `fences` name, to all hash chains."""
        # Blocks with the same history have the same chain: one hash for all of them.
        after = {c: extend(c, commit.version, commit.step, fences) for c in set(self.chains.values())}
        self.chains = {block: after[chain] for block, chain in self.chains.items()}

    def chains_of(self, blocks: Collection[int]) -> dict[int, bytes]:
        """The hash chains of those blocks here that are in `blocks`."""
        return {block: chain for block, chain in self.chains.items() if block in blocks}

    def hand_over(self, blocks: Sequence[int], to: BlockGroup, version: int) -> None:
        """Move `blocks` to another group, with their values, optimizer state, kept versions and chains."""
        to.store.copies.put(version, self.store.copies.take(blocks))
        for block in blocks:
            to.blocks[block] = self.blocks.pop(block)
            to.chains[block] = self.chains.pop(block)

    def drop(self, blocks: Sequence[int]) -> None:
        """Forget `blocks`."""
        self.store.copies.take(blocks)
        for block in blocks:
            del self.blocks[block], self.chains[block]


def shares(placement: Placement, node: NodeId) -> tuple[dict[NodeId, list[int]], dict[NodeId, list[int]]]:
    """The blocks that `node` has in sync, and the blocks that are being sent to it, both by primary."""
    if node in placement.group:  # a member of a group treats every block as its own
        return {node: list(range(len(placement.owners)))}, {}
    synced: dict[NodeId, list[int]] = {}
    for block, owner in enumerate(placement.owners):
        if owner == node or (placement.backups and node in placement.backups[block]):
            synced.setdefault(owner, []).append(block)
    joining: dict[NodeId, list[int]] = {}
    for server, blocks in placement.joining:
        if server == node:
            for block in blocks:
                joining.setdefault(placement.owners[block], []).append(block)
    return synced, joining


def regroup(
    groups: Iterable[BlockGroup],
    wanted: Mapping[NodeId, Sequence[int]],
    target: Callable[[NodeId], BlockGroup],
    version: int,
) -> None:
    """Move the blocks of a server to the group of their primary, and drop those that are not `wanted`.

    Raises:
        AssertionError: a wanted block is in no group. The placement may name only servers that have the block in sync.
    """
    sources = list(groups)
    home = {block: group for group in sources for block in group.blocks}
    for primary, blocks in wanted.items():
        to = target(primary)
        missing = [b for b in blocks if b not in home]
        assert not missing, f"blocks {missing} of {primary} were never copied to this server"
        for source in sources:
            moved = [b for b in blocks if home[b] is source]
            if source is not to and moved:
                source.hand_over(moved, to, version)
    kept = {block for blocks in wanted.values() for block in blocks}
    for source in sources:
        unwanted = [b for b in source.blocks if b not in kept]
        if unwanted:
            source.drop(unwanted)
