"""One block with its optimizer state: what is copied, saved and loaded together."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


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
    """One version that is written to a checkpoint: nothing in `blocks` changes until `release`.

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
