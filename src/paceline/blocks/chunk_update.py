"""The update of one chunk of parameters by a commit: mean gradient, optimizer, next weights, in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from paceline.blocks.chunks import Chunk
from paceline.blocks.flat_optimizers import FlatOptimizer, fits, flat_optimizer
from paceline.blocks.sums import Sum, mean
from paceline.blocks.threads import Scratch
from paceline.blocks.torch_optimizers import PieceOptimizer, State
from paceline.errors import UpdateError
from paceline.transport.base import Delivery
from paceline.types import Commit, Hyper, ModelSpec


class ChunkOptimizer(Protocol):
    """An optimizer with its state for the pieces of one chunk."""

    def step(
        self,
        hyper: Hyper,
        old: torch.Tensor,
        new: torch.Tensor,
        grad: torch.Tensor,
        present: Sequence[bool] | None,
        scratch: Scratch,
    ) -> None:
        """Write to `new` the update of `old` by `grad`. Pieces that are not `present` do not change; None: all are."""
        ...

    def state(self, piece: int) -> dict[str, torch.Tensor]:
        """The current state of one piece, by the names of torch; empty before its first update."""
        ...

    def replace_state(self, reuse: Sequence[State]) -> list[State]:
        """Replace all state by a copy, made in `reuse` where that fits; returns the tensors that were replaced."""
        ...

    def load(self, piece: int, state: Mapping[str, torch.Tensor]) -> None:
        """Restore state that `state` returned, or some of it, before the first update."""
        ...


class TorchOptimizer:
    """A `ChunkOptimizer` that runs the class of `torch.optim` on a copy of the weights."""

    def __init__(self, spec: ModelSpec, chunk: Chunk, groups: Sequence[int]) -> None:
        """`groups[i]` is the param group of piece i."""
        self._spans = [(p.start, p.end) for p in chunk.pieces]
        samples = torch.zeros(chunk.numel, dtype=chunk.dtype)
        self._pieces = PieceOptimizer(spec.optimizer, groups, [samples[a:b] for a, b in self._spans])

    def step(
        self,
        hyper: Hyper,
        old: torch.Tensor,
        new: torch.Tensor,
        grad: torch.Tensor,
        present: Sequence[bool] | None,
        scratch: Scratch,
    ) -> None:
        """As `ChunkOptimizer.step`. Gradients are copied, since some classes of torch write to them."""
        new.copy_(old)
        weights = [new[a:b] for a, b in self._spans]
        here = present if present is not None else [True] * len(weights)
        grads = [grad[a:b].clone() if there else None for (a, b), there in zip(self._spans, here, strict=True)]
        self._pieces.step(hyper, weights, grads)

    def state(self, piece: int) -> dict[str, torch.Tensor]:
        """As `ChunkOptimizer.state`."""
        return self._pieces.state(piece)

    def replace_state(self, reuse: Sequence[State]) -> list[State]:
        """As `ChunkOptimizer.replace_state`."""
        return self._pieces.replace_state(reuse)

    def load(self, piece: int, state: Mapping[str, torch.Tensor]) -> None:
        """As `ChunkOptimizer.load`."""
        self._pieces.load(piece, state)


class ChunkUpdate:
    """The optimizer of one chunk, and the readers of its state.

    `_shared` are the readers of the current state (frozen versions, copies for other servers). If there are any, the
    next update first copies the state. The copy is made in `_spare`, the state before that, once `_readers`, its
    readers, are done. `run` writes only to this chunk, so that several threads can update several chunks.
    """

    def __init__(self, spec: ModelSpec, chunk: Chunk) -> None:
        self.chunk = chunk
        self._spec = spec
        self._groups = [spec.tensors[p.tensor].group for p in chunk.pieces]
        self._hyper = spec.optimizer.hyper
        self.optimizer: ChunkOptimizer
        try:
            if fits(spec.optimizer.name, self._hyper):
                self.optimizer = flat_optimizer(spec.optimizer.name, chunk, self._groups)
            else:
                self.optimizer = TorchOptimizer(spec, chunk, self._groups)
        except Exception as error:
            raise self._failed(error) from error
        self._shared: list[Delivery] = []
        self._spare: list[State] = []
        self._readers: list[Delivery] = []

    def run(
        self,
        total: Sum,
        commit: Commit,
        present: Sequence[bool] | None,
        old: torch.Tensor,
        new: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        """Write the next version of the chunk to `new`.

        Raises:
            UpdateError: torch raised. The update cannot be repeated: optimizer state may have changed.
        """
        try:
            grad = self._gradient(total, total.weight, commit.scale, scratch)
            if commit.hyper != self._hyper:
                self._change(commit.hyper)
            self._own()
            self.optimizer.step(commit.hyper, old, new, grad, present, scratch)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> UpdateError:
        names = dict.fromkeys(self._spec.tensors[p.tensor].name for p in self.chunk.pieces)
        return UpdateError(self._spec.optimizer.name, tuple(names), f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------ before the commit

    def is_complete(self, total: Sum, slots: int) -> bool:
        """Whether each block of the chunk has gradients of all `slots`, sealed or not."""
        blocks = total.blocks
        for index in self.chunk.blocks:
            mine = blocks.get(index)
            if mine is None or mine.slots != slots:
                return False
        return True

    def stamps(self, total: Sum) -> tuple[int, ...]:
        """Numbers that change whenever the gradients in the sum of a complete chunk change."""
        return tuple([total.blocks[index].stamp for index in self.chunk.blocks])

    def expected_weight(self, total: Sum) -> float:
        """The weight that the sum of a complete chunk has once all its slots are sealed."""
        weight = total.weight
        for term in total.blocks[self.chunk.blocks[0]].terms:
            if not term.sealed:
                weight += term.weight
        return weight

    def run_early(
        self, total: Sum, weight: float, hyper: Hyper, old: torch.Tensor, new: torch.Tensor, scratch: Scratch
    ) -> bool:
        """As `run` without clipping, but `accept_early` changes the state. False if the optimizer cannot do this."""
        if not isinstance(self.optimizer, FlatOptimizer) or not weight:
            return False
        if hyper != self._hyper and not fits(self._spec.optimizer.name, hyper):
            return False
        try:
            return self.optimizer.step_early(hyper, old, new, self._gradient(total, weight, 1.0, scratch), scratch)
        except Exception as error:
            raise self._failed(error) from error

    def accept_early(self, hyper: Hyper) -> None:
        """Use the new state of the last `run_early`. State that has readers is not written."""
        assert isinstance(self.optimizer, FlatOptimizer)
        self._hyper = hyper
        self.optimizer.accept_early(hyper, reuse=all(r.done for r in self._shared))
        self._shared = []

    def _gradient(self, total: Sum, weight: float, scale: float, scratch: Scratch) -> torch.Tensor:
        """The mean gradient, in memory of `scratch`; with one slot, the frame of its sender, which is not written."""
        chunk, blocks = self.chunk, total.blocks
        out = scratch.take("grad", chunk.dtype, chunk.numel)
        if len(chunk.blocks) == 1:
            grad = blocks[chunk.blocks[0]].into(out)
        else:
            grad = out
            for index, view in scratch.blocks(out, chunk).items():
                block = blocks.get(index)
                if block is not None and block.slots:
                    made = block.into(view)
                    if made is not view:
                        view.copy_(made)
        grad = mean(grad, weight, out)
        return torch.mul(grad, scale, out=out) if scale < 1.0 else grad

    def _change(self, hyper: Hyper) -> None:
        """Use other hyper-parameters, with the class of `torch.optim` if they do not fit a flat optimizer."""
        if isinstance(self.optimizer, FlatOptimizer) and not fits(self._spec.optimizer.name, hyper):
            states = [self.optimizer.state(n) for n in range(len(self._groups))]
            self.optimizer = TorchOptimizer(self._spec, self.chunk, self._groups)
            for number, state in enumerate(states):
                self.optimizer.load(number, {name: tensor.clone() for name, tensor in state.items()})
            self._shared, self._spare, self._readers = [], [], []
        self._hyper = hyper

    # ------------------------------------------------------------ readers of the state

    def freeze(self, reader: Delivery) -> None:
        """Do not write to the current state until `reader` is done."""
        self._shared.append(reader)

    def _own(self) -> None:
        """Replace the state by a copy if it has readers."""
        if not self._shared:
            return
        self._shared = [r for r in self._shared if not r.done]
        if self._shared:
            reuse: list[dict[str, Any]] = self._spare if all(r.done for r in self._readers) else []
            self._spare, self._readers, self._shared = self.optimizer.replace_state(reuse), self._shared, []
