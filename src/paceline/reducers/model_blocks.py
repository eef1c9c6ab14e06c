"""What the `servers` reducer needs of the script's model: its blocks, and copies between them and push buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch

from paceline.messages import BlockFrame
from paceline.reducers.base import Made
from paceline.reducers.push_buffers import PushBuffer
from paceline.types import BlockSpec, ModelSpec


class ModelBlocks(Protocol):
    """The script's model as blocks. `worker.binding.Binding` implements it."""

    @property
    def spec(self) -> ModelSpec:
        """The tensors of the model."""
        ...

    @property
    def blocks(self) -> Sequence[BlockSpec]:
        """All blocks of the model."""
        ...

    def write_all(self, made: Made, into: PushBuffer) -> None:
        """Copy all gradients and changed buffers of the turn into the push buffer `into`."""
        ...

    def write(self, values: Mapping[int, torch.Tensor], into: PushBuffer, blocks: Iterable[BlockSpec]) -> None:
        """Copy those parts of `values` (by tensor number) that lie in `blocks` into the push buffer `into`."""
        ...

    def holds(self, buffer: PushBuffer, block: BlockSpec, values: Mapping[int, torch.Tensor]) -> bool:
        """Whether the content of `block` in `buffer` equals `values`, bit for bit."""
        ...

    def fill(self, frames: Sequence[BlockFrame], payload: Sequence[memoryview]) -> None:
        """Copy blocks of a version into the model. Nothing of `payload` is read after the call."""
        ...
