"""The memory from which gradients are pushed. All blocks lie one after the other in one buffer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from paceline.blocks.memcpy import address_of
from paceline.blocks.tensors import DTYPES
from paceline.types import ITEM_NBYTES, BlockSpec, TensorSpec

_IDLE_TURNS = 64  # a buffer that was not used in this many turns is freed

Allocate = Callable[[int], memoryview]
"""``f(nbytes)`` returns zeroed, aligned memory that a transport can lend. It is freed when the view is dropped."""


class BufferLayout:
    """The offsets of blocks (`offsets`) and tensors (`starts`) in a buffer, in bytes.

    Blocks follow each other in their order, so a tensor that is cut into many blocks is contiguous.
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
                assert self.starts.setdefault(piece.tensor, at) == at - piece.start * size, "a tensor is not contiguous"
            self.nbytes += block.nbytes


class PushBuffer:
    """Memory for one push of every block of a layout.

    By tensor number: `places` are views of its tensors, `runs` their (address, bytes). By block: `frames` are views of
    its blocks, `addresses` where they begin.
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
            if number in layout.starts or not spec.numel:  # a tensor without elements is in no block
                start = layout.starts.get(number, 0)
                end = start + spec.numel * ITEM_NBYTES[spec.dtype]
                self.places[number] = raw[start:end].view(DTYPES[spec.dtype]).view(spec.shape)
        self.runs = {number: (place.data_ptr(), place.nbytes) for number, place in self.places.items()}
        self._requests: set[int] = set()
        self._last_turn = 0

    def take(self, turn: int) -> None:
        """Note that turn number `turn` begins to write into the buffer, which is in no push yet."""
        self._requests.clear()
        self._last_turn = turn

    def send(self, req: int) -> None:
        """Note that push `req` has its payload in this buffer."""
        self._requests.add(req)

    def is_free(self, unacked: Collection[int], lent: Collection[int]) -> bool:
        """Whether the buffer may be overwritten: every push from it is answered, and no transport reads it."""
        return self._requests.isdisjoint(unacked) and self._requests.isdisjoint(lent)

    def is_idle(self, turn: int) -> bool:
        """Whether the buffer has not been used for many turns."""
        return turn - self._last_turn >= _IDLE_TURNS


class PushBuffers:
    """The push buffers of one worker. A buffer is written only while it is free; if none is free, one is added.

    Their number is that of sealed slots which servers have not added yet; the protocol limits it (by `hold` in
    lock-step, else by the window). A wait for a free buffer could last forever: the servers may wait for the very slot
    that is being sealed.
    """

    def __init__(self, layout: BufferLayout, allocate: Allocate) -> None:
        self._layout = layout
        self._allocate = allocate
        self._buffers: list[PushBuffer] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._buffers)

    def begin_turn(self) -> None:
        """Count a turn."""
        self._turn += 1

    def take(
        self, unacked: Collection[int], lent: Collection[int], in_use: Collection[PushBuffer | None]
    ) -> PushBuffer:
        """Return a free buffer other than those `in_use`, whose content is still needed here. Frees idle buffers."""
        taken = next((b for b in self._buffers if b not in in_use and b.is_free(unacked, lent)), None)
        if taken is None:
            taken = PushBuffer(self._layout, self._allocate)
            self._buffers.append(taken)
        taken.take(self._turn)
        self._buffers = [b for b in self._buffers if not b.is_idle(self._turn) or not b.is_free(unacked, lent)]
        return taken
