"""What a commit does to one chunk of parameters: mean gradient, optimizer, next weights, in one go over the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.chunks import Chunk
from paceline.blocks.flat_optimizers import FlatOptimizer, fits, flat_optimizer
from paceline.blocks.sums import Sum, mean
from paceline.blocks.threads import Scratch
from paceline.blocks.torch_optimizers import PieceOptimizer, State
from paceline.transport.base import Delivery
from paceline.types import Commit, Hyper, ModelSpec


class Frozen:
    """One version as it was, to be written to a checkpoint: nothing in `blocks` changes until `done` is set.

    It is a `Delivery`: whoever reads it, in any thread, sets `done` when he has finished.
    """

    __slots__ = ("blocks", "done", "version")

    def __init__(self, version: int, blocks: dict[int, BlockState]) -> None:
        self.version = version
        self.blocks = blocks
        self.done = False


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
        """Write to `new` what `grad` makes of `old`; pieces that are not `present` (None: all are) stay as they are."""
        ...

    def state(self, piece: int) -> dict[str, torch.Tensor]:
        """The state of one piece in use, by torch's own names; empty before its first update."""
        ...

    def depart(self, room: Sequence[State]) -> list[State]:
        """Go on with a copy of all state, made in `room` where that fits; what was used until now is returned."""
        ...

    def load(self, piece: int, state: Mapping[str, torch.Tensor]) -> None:
        """Put back what `state` gave, or some of it, before the first update."""
        ...


class TorchOptimizer:
    """A `ChunkOptimizer` by the real class: weights are copied, and it updates the copy."""

    def __init__(self, spec: ModelSpec, chunk: Chunk, groups: Sequence[int]) -> None:
        """`groups[i]` is the param group of piece i."""
        self._places = [(p.start, p.end) for p in chunk.places]
        samples = torch.zeros(chunk.numel, dtype=chunk.dtype)
        self._pieces = PieceOptimizer(spec.optimizer, groups, [samples[a:b] for a, b in self._places])
        self.state, self.depart, self.load = self._pieces.state, self._pieces.depart, self._pieces.load

    def step(
        self,
        hyper: Hyper,
        old: torch.Tensor,
        new: torch.Tensor,
        grad: torch.Tensor,
        present: Sequence[bool] | None,
        scratch: Scratch,
    ) -> None:
        """Piece by piece. Some of torch's classes write to the gradients, which may be a worker's: they get copies."""
        new.copy_(old)
        weights = [new[a:b] for a, b in self._places]
        here = present if present is not None else [True] * len(weights)
        grads = [grad[a:b].clone() if there else None for (a, b), there in zip(self._places, here, strict=True)]
        self._pieces.step(hyper, weights, grads)


class ChunkUpdate:
    """The optimizer of one chunk, and who still reads its state.

    `_shared` are the readers of the state as it is now (frozen versions, copies for other servers); the next update
    goes on with a copy of it. That copy is made in `_spare`, which `_readers` read before. `run` touches nothing but
    the chunk, so that chunks can be updated by several threads.
    """

    def __init__(self, spec: ModelSpec, chunk: Chunk) -> None:
        self.chunk = chunk
        self._spec = spec
        self._groups = [spec.tensors[p.tensor].group for p in chunk.places]
        self._hyper = spec.optimizer.hyper
        self.optimizer: ChunkOptimizer
        if fits(spec.optimizer.name, self._hyper):
            self.optimizer = flat_optimizer(spec.optimizer.name, chunk, self._groups)
        else:
            self.optimizer = TorchOptimizer(spec, chunk, self._groups)
        self._shared: list[Delivery] = []
        self._spare: list[State] = []
        self._readers: list[Delivery] = []

    def presence(self, total: Sum) -> list[bool] | None:
        """Which pieces have a gradient; None when all have."""
        if total.full.issuperset(self.chunk.blocks):
            return None
        return [total.has(p.block, p.tensor) for p in self.chunk.places]

    def run(
        self,
        total: Sum,
        commit: Commit,
        present: Sequence[bool] | None,
        old: torch.Tensor,
        new: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        """Write the chunk's next version to `new`."""
        grad = self._gradient(total, total.weight, commit.scale, scratch)
        if commit.hyper != self._hyper:
            self._change(commit.hyper)
        self._own()
        self.optimizer.step(commit.hyper, old, new, grad, present, scratch)

    # ------------------------------------------------------------ before the commit

    def is_complete(self, total: Sum, slots: int) -> bool:
        """Whether all blocks have a gradient of all `slots`, sealed or not."""
        held = total.blocks
        return all((mine := held.get(index)) is not None and mine.slots == slots for index in self.chunk.blocks)

    def stamps(self, total: Sum) -> tuple[int, ...]:
        """Of which gradients the sum of a complete chunk is."""
        return tuple([total.blocks[index].stamp for index in self.chunk.blocks])

    def expected_weight(self, total: Sum) -> float:
        """What a complete chunk will weigh once all of it is sealed."""
        weight = total.weight
        for term in total.blocks[self.chunk.blocks[0]].terms:
            if not term.sealed:
                weight += term.weight
        return weight

    def ahead(
        self, total: Sum, weight: float, hyper: Hyper, old: torch.Tensor, new: torch.Tensor, scratch: Scratch
    ) -> bool:
        """As `run` without clipping, but nothing changes until `accept`. False if this optimizer cannot do that."""
        if not isinstance(self.optimizer, FlatOptimizer) or hyper != self._hyper or not weight:
            return False
        return self.optimizer.ahead(hyper, old, new, self._gradient(total, weight, 1.0, scratch), scratch)

    def accept(self, hyper: Hyper) -> None:
        """What `ahead` made counts. State that a checkpoint reads is left to it."""
        assert isinstance(self.optimizer, FlatOptimizer)
        self.optimizer.accept(hyper, reuse=all(f.done for f in self._shared))
        self._shared = []

    # ------------------------------------------------------------ inside

    def _gradient(self, total: Sum, weight: float, scale: float, scratch: Scratch) -> torch.Tensor:
        """The mean of the slots, in `scratch` or, untouched, where the only slot left it."""
        chunk, blocks = self.chunk, total.blocks
        out = scratch.take("grad", chunk.dtype, chunk.numel)
        if len(chunk.blocks) == 1:
            grad = blocks[chunk.blocks[0]].into(out)
        else:
            grad = out
            for index, part in scratch.parts(out, chunk).items():
                held = blocks.get(index)
                if held is not None and held.slots:
                    made = held.into(part)
                    if made is not part:
                        part.copy_(made)
        grad = mean(grad, weight, out)
        return torch.mul(grad, scale, out=out) if scale < 1.0 else grad

    def _change(self, hyper: Hyper) -> None:
        """Other numbers from now on; they may mean another kind of update."""
        if isinstance(self.optimizer, FlatOptimizer) and not fits(self._spec.optimizer.name, hyper):
            held = [self.optimizer.state(n) for n in range(len(self._groups))]
            self.optimizer = TorchOptimizer(self._spec, self.chunk, self._groups)
            for number, state in enumerate(held):
                self.optimizer.load(number, {name: tensor.clone() for name, tensor in state.items()})
            self._shared, self._spare, self._readers = [], [], []
        self._hyper = hyper

    # ------------------------------------------------------------ checkpoints

    def freeze(self, reader: Delivery) -> None:
        """The state as it is now is `reader`'s until that is done."""
        self._shared.append(reader)

    def _own(self) -> None:
        """Make sure that nobody reads the state which the next update writes."""
        if not self._shared:
            return
        self._shared = [f for f in self._shared if not f.done]
        if self._shared:
            room: list[dict[str, Any]] = self._spare if all(f.done for f in self._readers) else []
            self._spare, self._readers, self._shared = self.optimizer.depart(room), self._shared, []
