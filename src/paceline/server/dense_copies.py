"""Dense blocks with their optimizer state, sent to another server or moved to another store of this server."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import cast

import torch

from paceline.blocks.chunks import Lent, LentFrame
from paceline.blocks.early_update import EarlyUpdates
from paceline.blocks.tensors import DTYPE_NAMES, bytes_of, tensor_of
from paceline.messages import CopyFrame
from paceline.server.dense_sums import DenseSums
from paceline.server.held_blocks import HeldBlocks, MovedChunk
from paceline.transport.base import Delivery


class LentCopy:
    """Blocks of one version, lent to a joining server, to which they are sent in parts.

    Each part refers to this object. `reader` is done when no part does so any more, and all sent parts are read.
    """

    __slots__ = ("__weakref__", "reader")

    def __init__(self) -> None:
        self.reader = LentCopyReader(weakref.ref(self))

    def lend(self, delivery: Delivery) -> None:
        """Note that a part of the copy is being read until `delivery` is done."""
        self.reader.lend(delivery)


class LentCopyReader(Lent):
    """The `Delivery` that updates check before they write to lent memory. It does not keep the copy alive."""

    __slots__ = ("_copy",)

    def __init__(self, copy: weakref.ref[LentCopy]) -> None:
        super().__init__()
        self._copy = copy

    @property
    def done(self) -> bool:
        """Whether the memory of the copy may be written again."""
        return self._copy() is None and self.idle


class DenseCopies:
    """`Copies` of the core over torch tensors."""

    def __init__(self, held: HeldBlocks, sums: DenseSums, early: EarlyUpdates) -> None:
        self._held = held
        self._sums = sums
        self._early = early

    # ------------------------------------------------------------ to and from other servers

    def copy_out(self, blocks: Collection[int]) -> tuple[tuple[CopyFrame, ...], Sequence[LentFrame]]:
        """The current version of `blocks` with their optimizer state, lent while the frames are in use."""
        copy, versions = LentCopy(), self._held.versions
        found: dict[int, list[tuple[CopyFrame, LentFrame]]] = {}
        for number, here in self._held.by_chunk(blocks).items():
            buffer, update = versions.current[number], self._held.updates.get(number)
            buffer.lend(copy.reader)
            for index in here:
                spec = self._held.blocks[index]
                frame = CopyFrame(index, -1, "", spec.dtype, spec.numel)
                found[index] = [(frame, LentFrame(buffer.frames[index], copy))]
            if update is not None:
                update.freeze(copy.reader)
                for piece, span in enumerate(update.chunk.pieces):
                    for name, tensor in update.optimizer.state(piece).items() if span.block in here else ():
                        frame = _state_frame(span.block, span.number, name, tensor)
                        found[span.block].append((frame, LentFrame(bytes_of(tensor), copy)))
        pairs = [pair for index in sorted(found) for pair in found[index]]
        return tuple(frame for frame, _ in pairs), [lent for _, lent in pairs]

    def copy_in(self, version: int, frames: Sequence[CopyFrame], payload: Sequence[object]) -> None:
        """Write frames that `copy_out` returned on another server, at `version`. The payload is copied."""
        optimizers = self._held.optimizers()
        for frame, content in zip(frames, payload, strict=True):
            tensor = tensor_of(cast(memoryview, content), frame.dtype)
            if not frame.name:
                self._held.value(frame.block).copy_(tensor)
            else:
                update, number = optimizers[frame.block, frame.piece]
                state = tensor.clone()
                update.optimizer.load(number, {frame.name: state.reshape(()) if frame.scalar else state})
        self._held.versions.reset(version)

    # ------------------------------------------------------------ between stores of one process

    def take(self, blocks: Collection[int]) -> list[MovedChunk]:
        """Remove `blocks`, and return them for another store of this process. There must be no sums."""
        self._early.drop()
        taken = self._held.take(blocks)
        self._sums.blocks_changed()
        return taken

    def put(self, version: int, taken: object) -> None:
        """Add blocks that `take` removed from another store, at `version`."""
        self._early.drop()
        self._held.put(version, cast(Sequence[MovedChunk], taken))
        self._sums.blocks_changed()


def _state_frame(block: int, piece: int, name: str, tensor: torch.Tensor) -> CopyFrame:
    return CopyFrame(block, piece, name, DTYPE_NAMES[tensor.dtype], tensor.numel(), tensor.dim() == 0)
