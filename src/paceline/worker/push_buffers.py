"""Memory from which gradients are pushed: blocks back to back, written through one view a tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from paceline.blocks.tensors import DTYPES
from paceline.transport.base import Delivery
from paceline.types import ITEM_NBYTES, BlockSpec, TensorSpec
from paceline.worker.memcpy import address_of

Room = Callable[[int], memoryview]
"""Gives zeroed, writable, aligned memory that the lane can lend; it goes back when the view is dropped."""


class StagePlan:
    """Where blocks and tensors lie in a stage.

    Blocks follow each other in their order, so that a tensor which is cut into many of them is one run of memory.
    """

    def __init__(self, tensors: Sequence[TensorSpec], blocks: Iterable[BlockSpec]) -> None:
        self.tensors = tensors
        self.blocks = tuple(blocks)
        self.offsets: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.nbytes = 0
        for block in self.blocks:
            self.offsets[block.index] = self.nbytes
            for piece in block.pieces:
                size = ITEM_NBYTES[block.dtype]
                at = self.nbytes + piece.offset * size
                assert self.starts.setdefault(piece.tensor, at) == at - piece.start * size, "a tensor is not one run"
            self.nbytes += block.nbytes


class Stage:
    """Memory for one push of every block of a plan. Free again when every server has answered and no lane reads it.

    `places` are its tensors, each at one of the `runs` (address, bytes); `frames` are its blocks, at `addresses`.
    """

    __slots__ = ("addresses", "deliveries", "frames", "places", "requests", "runs", "used")

    def __init__(self, plan: StagePlan, room: Room) -> None:
        memory = room(plan.nbytes)
        base = address_of(memory)
        self.addresses = {b.index: base + plan.offsets[b.index] for b in plan.blocks}
        self.frames = {b.index: memory[(o := plan.offsets[b.index]) : o + b.nbytes] for b in plan.blocks}
        raw = torch.frombuffer(memory, dtype=torch.uint8) if plan.nbytes else torch.empty(0, dtype=torch.uint8)
        self.places: dict[int, torch.Tensor] = {}
        for number, spec in enumerate(plan.tensors):
            if number in plan.starts or not spec.numel:  # what has no elements lies in no block
                start = plan.starts.get(number, 0)
                end = start + spec.numel * ITEM_NBYTES[spec.dtype]
                self.places[number] = raw[start:end].view(DTYPES[spec.dtype]).view(spec.shape)
        self.runs = {number: (place.data_ptr(), place.nbytes) for number, place in self.places.items()}
        self.requests: set[int] = set()
        self.deliveries: list[Delivery] = []
        self.used = 0

    def free(self, unacked: Collection[int]) -> bool:
        """Whether it may be written."""
        return self.requests.isdisjoint(unacked) and all(d.done for d in self.deliveries)
