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
        """Bytes of all of it."""
        return sum(t.nbytes for t in (self.value, *self.state.values()))
