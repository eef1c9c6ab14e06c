"""Runs of blocks that lie in one memory and are updated in one go, and the versions of them that readers see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from paceline.blocks.tensors import DTYPES
from paceline.transport.base import Delivery, Frame
from paceline.types import ITEM_NBYTES, BlockSpec, Kind

CHUNK_NBYTES = 1 << 20
"""Small blocks share few calls of torch; a large block, its gradient, weights and state still fit into a core's share
of the cache while the optimizer goes over them several times."""


class Place(NamedTuple):
    """One piece: number `number` of block `block`, part of tensor `tensor`, at [start, end) of its chunk."""

    block: int
    number: int
    tensor: int
    start: int
    end: int


class Chunk:
    """Blocks of one kind and dtype in a row; `spans` says where each lies, in elements."""

    __slots__ = ("blocks", "dtype", "kind", "nbytes", "numel", "places", "spans", "specs")

    def __init__(self, blocks: Sequence[BlockSpec]) -> None:
        self.specs = tuple(blocks)
        self.blocks = tuple(b.index for b in blocks)
        self.kind = blocks[0].kind
        self.dtype = DTYPES[blocks[0].dtype]
        self.spans: dict[int, tuple[int, int]] = {}
        places: list[Place] = []
        end = 0
        for block in blocks:
            start, end = end, end + block.numel
            self.spans[block.index] = (start, end)
            for number, piece in enumerate(block.pieces):
                first = start + piece.offset
                places.append(Place(block.index, number, piece.tensor, first, first + piece.numel))
        self.places = tuple(places)
        self.numel = end
        self.nbytes = end * ITEM_NBYTES[blocks[0].dtype]

    def of(self, flat: torch.Tensor, block: int) -> torch.Tensor:
        """The part of `flat`, which is as long as the chunk, that is `block`'s."""
        if len(self.blocks) == 1:
            return flat
        start, end = self.spans[block]
        return flat[start:end]


def in_chunks(blocks: Sequence[BlockSpec]) -> list[Chunk]:
    """Blocks by kind and dtype, in their order, as many in a chunk as fit."""
    groups: dict[tuple[Kind, str], list[list[BlockSpec]]] = {}
    for block in blocks:
        mine = groups.setdefault((block.kind, block.dtype), [])
        if not mine or sum(b.nbytes for b in mine[-1]) + block.nbytes > CHUNK_NBYTES:
            mine.append([])
        mine[-1].append(block)
    return [Chunk(group) for mine in groups.values() for group in mine]


class Lender(Protocol):
    """Whoever must know that something is read."""

    def lend(self, delivery: Delivery) -> None:
        """Somebody reads it until `delivery` is done."""
        ...


class Lent:
    """Memory that others may read. Readers are deliveries that may still look at it."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: list[Delivery] = []

    def lend(self, delivery: Delivery) -> None:
        """Somebody reads the memory until `delivery` is done."""
        self._readers = [d for d in self._readers if not d.done]
        if not delivery.done:
            self._readers.append(delivery)

    @property
    def idle(self) -> bool:
        """Nobody reads it any more, so it may be written."""
        self._readers = [d for d in self._readers if not d.done]
        return not self._readers


class Buffer(Lent):
    """One version of one chunk."""

    __slots__ = ("frames", "tensor")

    def __init__(self, chunk: Chunk, room: Frame) -> None:
        super().__init__()
        self.tensor = torch.frombuffer(room, dtype=chunk.dtype)
        size = chunk.nbytes // chunk.numel
        self.frames = {b: room[start * size : end * size] for b, (start, end) in chunk.spans.items()}


class Part(NamedTuple):
    """What is sent as one frame, and the memory that it lies in, which does not know its parts.

    It is freed with the last of them.
    """

    frame: Frame
    buffer: Lender
