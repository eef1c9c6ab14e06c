"""Chunks: blocks that lie in one memory and are updated together; and the buffers that hold versions of a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from paceline.blocks.tensors import DTYPES
from paceline.transport.base import Delivery, Frame
from paceline.types import ITEM_NBYTES, BlockSpec, Kind

CHUNK_NBYTES = 1 << 20
"""The largest chunk, unless one block is larger.

Large enough that small blocks share few calls of torch; small enough that weights, gradient and optimizer state stay in
the cache of a core while the optimizer goes over them several times."""


class PieceSpan(NamedTuple):
    """One piece of a chunk: piece `number` of `block`, with elements of `tensor`, at [start, end) of the chunk."""

    block: int
    number: int
    tensor: int
    start: int
    end: int


class Chunk:
    """Blocks of one kind and dtype in a row. `spans` has the range of each block, `pieces` the range of each piece."""

    __slots__ = ("blocks", "dtype", "kind", "nbytes", "numel", "pieces", "spans", "specs")

    def __init__(self, blocks: Sequence[BlockSpec]) -> None:
        self.specs = tuple(blocks)
        self.blocks = tuple(b.index for b in blocks)
        self.kind = blocks[0].kind
        self.dtype = DTYPES[blocks[0].dtype]
        self.spans: dict[int, tuple[int, int]] = {}
        pieces: list[PieceSpan] = []
        end = 0
        for block in blocks:
            start, end = end, end + block.numel
            self.spans[block.index] = (start, end)
            for number, piece in enumerate(block.pieces):
                first = start + piece.offset
                pieces.append(PieceSpan(block.index, number, piece.tensor, first, first + piece.numel))
        self.pieces = tuple(pieces)
        self.numel = end
        self.nbytes = end * ITEM_NBYTES[blocks[0].dtype]

    def of(self, flat: torch.Tensor, block: int) -> torch.Tensor:
        """The elements of `block` in `flat`, a tensor as long as the chunk (a view)."""
        if len(self.blocks) == 1:
            return flat
        start, end = self.spans[block]
        return flat[start:end]


def in_chunks(blocks: Sequence[BlockSpec]) -> list[Chunk]:
    """Put blocks of the same kind and dtype into chunks of at most `CHUNK_NBYTES`, in their order."""
    groups: dict[tuple[Kind, str], list[list[BlockSpec]]] = {}
    for block in blocks:
        mine = groups.setdefault((block.kind, block.dtype), [])
        if not mine or sum(b.nbytes for b in mine[-1]) + block.nbytes > CHUNK_NBYTES:
            mine.append([])
        mine[-1].append(block)
    return [Chunk(group) for mine in groups.values() for group in mine]


class Lender(Protocol):
    """Memory that must not be written while a reader uses it."""

    def lend(self, delivery: Delivery) -> None:
        """Note a reader: do not write to the memory until `delivery` is done."""
        ...


class Lent:
    """Memory that knows its readers: the deliveries that are not done."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: list[Delivery] = []

    def lend(self, delivery: Delivery) -> None:
        """Note a reader: do not write to the memory until `delivery` is done."""
        self._readers = [d for d in self._readers if not d.done]
        if not delivery.done:
            self._readers.append(delivery)

    @property
    def idle(self) -> bool:
        """Whether the memory has no reader, and may be written."""
        self._readers = [d for d in self._readers if not d.done]
        return not self._readers


class Buffer(Lent):
    """The memory of one version of one chunk; `frames` has the bytes of each block."""

    __slots__ = ("frames", "tensor")

    def __init__(self, chunk: Chunk, memory: Frame) -> None:
        super().__init__()
        self.tensor = torch.frombuffer(memory, dtype=chunk.dtype)
        size = chunk.nbytes // chunk.numel
        self.frames = {b: memory[start * size : end * size] for b, (start, end) in chunk.spans.items()}


class LentFrame(NamedTuple):
    """One frame to be sent, and the memory that it lies in.

    The buffer does not refer to its frames; it is freed when the last frame is.
    """

    frame: Frame
    buffer: Lender
