"""Memory from which gradients are pushed: blocks back to back, written through one view a tensor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from paceline.blocks.memcpy import address_of
from paceline.blocks.tensors import DTYPES
from paceline.types import ITEM_NBYTES, BlockSpec, TensorSpec

_IDLE_TURNS = 64  # a buffer that was not used for so many turns is given back

Allocate = Callable[[int], memoryview]
"""Gives zeroed, writable, aligned memory that a transport can lend; it is given back when the view is dropped."""


class BufferLayout:
    """Where blocks and tensors lie in a buffer.

    Blocks follow each other in their order, so a tensor that is cut into many of them is one run of memory.
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


class PushBuffer:
    """Memory for one push of every block of a layout.

    `places` are its tensors, each at one of the `runs` (address, bytes); `frames` are its blocks, at `addresses`.
    """

    __slots__ = ("_last_turn", "_requests", "addresses", "frames", "places", "runs")

    def __init__(self, layout: BufferLayout, allocate: Allocate) -> None:
        memory = allocate(layout.nbytes)
        base = address_of(memory)
        self.addresses = {b.index: base + layout.offsets[b.index] for b in layout.blocks}
        self.frames = {b.index: memory[(o := layout.offsets[b.index]) : o + b.nbytes] for b in layout.blocks}
        raw = torch.frombuffer(memory, dtype=torch.uint8) if layout.nbytes else torch.empty(0, dtype=torch.uint8)
        self.places: dict[int, torch.Tensor] = {}
        for number, spec in enumerate(layout.tensors):
            if number in layout.starts or not spec.numel:  # a tensor without elements lies in no block
                start = layout.starts.get(number, 0)
                end = start + spec.numel * ITEM_NBYTES[spec.dtype]
                self.places[number] = raw[start:end].view(DTYPES[spec.dtype]).view(spec.shape)
        self.runs = {number: (place.data_ptr(), place.nbytes) for number, place in self.places.items()}
        self._requests: set[int] = set()
        self._last_turn = 0

    def take(self, turn: int) -> None:
        """A turn begins to write into it; it is in no push yet."""
        self._requests.clear()
        self._last_turn = turn

    def send(self, req: int) -> None:
        """It is the payload of push `req`."""
        self._requests.add(req)

    def is_free(self, unacked: Collection[int], lent: Collection[int]) -> bool:
        """Whether it may be written: every push from it is answered, and no transport reads it."""
        return self._requests.isdisjoint(unacked) and self._requests.isdisjoint(lent)

    def is_idle(self, turn: int) -> bool:
        """Whether it has not been used for long."""
        return turn - self._last_turn >= _IDLE_TURNS


class PushBuffers:
    """The buffers of one worker, used in turn and written only while free.

    There are as many as slots of this worker wait to be summed, which the protocol bounds (`hold` in lock-step, the
    window otherwise). To wait for a free one instead could last forever: the slot that the others wait for may be
    the one that is being sealed.
    """

    def __init__(self, layout: BufferLayout, allocate: Allocate) -> None:
        self._layout = layout
        self._allocate = allocate
        self._buffers: list[PushBuffer] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._buffers)

    def begin_turn(self) -> None:
        """A turn begins."""
        self._turn += 1

    def take(self, unacked: Collection[int], lent: Collection[int], in_use: PushBuffer | None) -> PushBuffer:
        """A buffer that nothing reads, other than the one `in_use` by this turn."""
        taken = next((b for b in self._buffers if b is not in_use and b.is_free(unacked, lent)), None)
        if taken is None:
            taken = PushBuffer(self._layout, self._allocate)
            self._buffers.append(taken)
        taken.take(self._turn)
        self._buffers = [b for b in self._buffers if not b.is_idle(self._turn) or not b.is_free(unacked, lent)]
        return taken
