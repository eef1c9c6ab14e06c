"""Blocks with one primary, as one server has them: its own, or copies of another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from paceline.core.hash_chain import START, extend
from paceline.core.server.block_store import BlockStore
from paceline.types import BlockSpec, Commit, Fence, ModelSpec, NodeId, Placement


class Group:
    """Some blocks in a store of their own, and their hash chains."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self.blocks: dict[int, BlockSpec] = {}
        self.chains: dict[int, bytes] = {}

    def open(self, spec: ModelSpec, blocks: Sequence[BlockSpec]) -> None:
        """Make room; nothing is there yet."""
        self.blocks = {b.index: b for b in blocks}
        self.chains = dict.fromkeys(self.blocks, START)
        self.store.open(spec, blocks)

    def extend(self, commit: Commit, fences: tuple[Fence, ...]) -> None:
        """`commit` was applied with the attempts `fences`."""
        # Blocks that came the same way have the same chain: one hash for all of them.
        after = {c: extend(c, commit.version, commit.step, fences) for c in set(self.chains.values())}
        self.chains = {block: after[chain] for block, chain in self.chains.items()}

    def hand_over(self, blocks: Sequence[int], to: Group, version: int) -> None:
        """`blocks` belong to another group from now on, with everything."""
        to.store.put(version, self.store.take(blocks))
        for block in blocks:
            to.blocks[block] = self.blocks.pop(block)
            to.chains[block] = self.chains.pop(block)

    def drop(self, blocks: Sequence[int]) -> None:
        """`blocks` are not held here any longer."""
        self.store.take(blocks)
        for block in blocks:
            del self.blocks[block], self.chains[block]


def shares(placement: Placement, node: NodeId) -> tuple[dict[NodeId, list[int]], dict[NodeId, list[int]]]:
    """What `node` holds, and what it is being sent: blocks by their primary."""
    held: dict[NodeId, list[int]] = {}
    for block, owner in enumerate(placement.owners):
        if owner == node or (placement.backups and node in placement.backups[block]):
            held.setdefault(owner, []).append(block)
    joining: dict[NodeId, list[int]] = {}
    for server, blocks in placement.joining:
        if server == node:
            for block in blocks:
                joining.setdefault(placement.owners[block], []).append(block)
    return held, joining


def regroup(
    groups: Iterable[Group], wanted: Mapping[NodeId, Sequence[int]], target: Callable[[NodeId], Group], version: int
) -> None:
    """Blocks that the server holds go to the group of their primary; what nobody wants is dropped.

    Raises:
        AssertionError: a block is wanted that no group has: only a member of its in-sync set may go on with it.
    """
    sources = list(groups)
    home = {block: group for group in sources for block in group.blocks}
    for primary, blocks in wanted.items():
        to = target(primary)
        missing = [b for b in blocks if b not in home]
        assert not missing, f"blocks {missing} of {primary} were never copied here"
        for source in sources:
            moved = [b for b in blocks if home[b] is source]
            if source is not to and moved:
                source.hand_over(moved, to, version)
    kept = {block for blocks in wanted.values() for block in blocks}
    for source in sources:
        left = [b for b in source.blocks if b not in kept]
        if left:
            source.drop(left)
