"""Which parameters had a gradient in some slot of a step: the optimizer leaves the others as they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.blocks.chunks import Chunk
from paceline.messages import SumMeta
from paceline.types import BlockSpec


class Presence:
    """The blocks and tensors that some slot of one step pushed.

    `touched` are the blocks that some slot pushed. `_full` are the blocks of which one slot pushed every tensor;
    `_tensors` are the tensors that slots pushed in the other blocks.
    """

    __slots__ = ("_full", "_tensors", "touched")

    def __init__(self) -> None:
        self.touched: set[int] = set()
        self._full: set[int] = set()
        self._tensors: set[int] = set()

    def note(self, block: BlockSpec, absent: frozenset[int]) -> None:
        """Record that a slot pushed `block`, in which the `absent` tensors have no gradient."""
        self.touched.add(block.index)
        if not absent or absent.isdisjoint([p.tensor for p in block.pieces]):
            self._full.add(block.index)
        else:
            self._tensors.update(p.tensor for p in block.pieces if p.tensor not in absent)

    def note_whole(self, blocks: Collection[int]) -> None:
        """Record that a slot pushed `blocks`, each with a gradient of every tensor."""
        self.touched.update(blocks)
        self._full.update(blocks)

    def has(self, block: int, tensor: int) -> bool:
        """Whether some slot had a gradient of `tensor` in `block`."""
        return block in self._full or (block in self.touched and tensor in self._tensors)

    def of_pieces(self, chunk: Chunk) -> list[bool] | None:
        """For each piece of `chunk`, whether some slot had a gradient of it; None if this holds for all pieces."""
        if self._full.issuperset(chunk.blocks):
            return None
        return [self.has(p.block, p.tensor) for p in chunk.pieces]

    # ------------------------------------------------------------ sent to backups

    def meta(self, blocks: Sequence[BlockSpec], weight: float, slots: int) -> SumMeta:
        """What a backup must know about the sum of `blocks` besides its values."""
        mine = {b.index for b in blocks}
        tensors = {p.tensor for b in blocks for p in b.pieces}
        return SumMeta(
            weight,
            slots,
            tuple(sorted(mine & self.touched)),
            tuple(sorted(mine & self._full)),
            tuple(sorted(tensors & self._tensors)),
        )

    def learn(self, meta: SumMeta) -> None:
        """Add the blocks and tensors that `meta`, made by the primary, says were pushed."""
        self.touched.update(meta.touched)
        self._full.update(meta.full)
        self._tensors.update(meta.present)
