"""One block with its optimizer state: what is copied, saved, hashed and loaded together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from paceline.blocks.tensors import DTYPE_NAMES, bytes_of, piece_of
from paceline.types import BlockSpec


@dataclass(slots=True)
class BlockState:
    """One block at one version: its value, and its optimizer state by piece and name."""

    value: torch.Tensor
    state: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the value and of the optimizer state."""
        return sum(t.nbytes for t in (self.value, *self.state.values()))


class FrozenVersion:
    """One version that is written to a checkpoint or hashed: nothing in `blocks` changes until `release`.

    This is a `Delivery`: its reader, in any thread, calls `release` when it has finished.
    """

    __slots__ = ("blocks", "done", "version")

    def __init__(self, version: int, blocks: dict[int, BlockState]) -> None:
        self.version = version
        self.blocks = blocks
        self.done = False

    def release(self) -> None:
        """Allow the memory to be written again: the reader has finished."""
        self.done = True


class FrozenContents(FrozenVersion):
    """One version whose content is hashed. `specs` are its blocks."""

    __slots__ = ("specs",)

    def __init__(self, version: int, blocks: dict[int, BlockState], specs: Mapping[int, BlockSpec]) -> None:
        super().__init__(version, blocks)
        self.specs = specs


def content_hash(spec: BlockSpec, block: BlockState) -> bytes:
    """16 bytes that are equal for equal values and optimizer states. What lies between two pieces does not count."""
    digest = hashlib.sha256()
    for piece in spec.pieces:
        digest.update(bytes_of(piece_of(block.value, piece)))
    for (number, name), tensor in sorted(block.state.items(), key=lambda item: item[0]):
        digest.update(f"{number}/{name}/{DTYPE_NAMES[tensor.dtype]}/{tensor.numel()}".encode())
        digest.update(bytes_of(tensor))
    return digest.digest()[:16]
