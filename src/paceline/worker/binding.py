"""The script's model as blocks: gradients are read out of it, and versions are copied into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from paceline.blocks.memcpy import address_of, compare, copy, flat, plain
from paceline.blocks.tensors import DTYPES
from paceline.core.layout import cut
from paceline.errors import LoopError, UsageError
from paceline.messages import BlockFrame
from paceline.reducers.base import Carried, Made
from paceline.reducers.push_buffers import PushBuffer
from paceline.types import BlockSpec, Hyper, Kind, ModelSpec, OptimizerSpec
from paceline.worker.hyperparameters import Hyperparameters
from paceline.worker.model_tensors import Entry, collect

_CACHED = 64  # the most sets of absent tensors whose `Carried` is kept


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the content of a block is copied to: `runs` of (offset in the block, address, bytes).

    `later` are the tensors that need a further copy: from a flat copy into the tensor, or into the shadow.
    """

    nbytes: int
    runs: list[tuple[int, int, int]]
    later: list[Entry]


class Binding:
    """Reads gradients out of the script's model and copies versions into it, in place. No object of it is replaced."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
        self._hyper = Hyperparameters(optimizer)
        if clip_norm is not None and not clip_norm > 0:
            raise UsageError(f"clip_norm must be greater than 0, not {clip_norm}")
        self.model = model
        self.optimizer = optimizer
        self.entries = collect(model, optimizer)
        self.on_cpu = all(e.tensor.device.type == "cpu" for e in self.entries)
        self.spec = ModelSpec(
            tuple(e.spec for e in self.entries),
            OptimizerSpec(type(optimizer).__name__, self.hyper()),
            clip_norm,
            self.on_cpu or torch.are_deterministic_algorithms_enabled(),
        )
        self.blocks = cut(self.spec.tensors)
        self.parameters = [e for e in self.entries if e.spec.kind == Kind.PARAMETER]
        self._weights = [e for e in self.entries if e.spec.kind in (Kind.PARAMETER, Kind.FROZEN)]
        self._buffers = [e for e in self.entries if e.spec.kind in (Kind.MEAN, Kind.LAST)]
        for entry in self._buffers:
            entry.shadow = entry.tensor.detach().clone()
        self._pushed = tuple(b for b in self.blocks if b.kind != Kind.FROZEN)
        self._targets = [self._target(b) for b in self.blocks]
        self._dtypes = [e.tensor.dtype for e in self.entries]
        self._every = frozenset(range(len(self.entries)))
        self._carried: dict[frozenset[int], Carried] = {}

    def hyper(self) -> Hyper:
        """The present hyper-parameters of the optimizer."""
        return self._hyper.now()

    # ------------------------------------------------------------ copy versions into the model

    def _target(self, block: BlockSpec) -> _Target:
        target = _Target(block.nbytes, [], [])
        for piece in block.pieces:
            entry = self.entries[piece.tensor]
            size = entry.flat.element_size()
            place = entry.flat.data_ptr() + piece.start * size
            target.runs.append((piece.offset * size, place, piece.numel * size))
            if not entry.direct or entry.shadow is not None:
                target.later.append(entry)
        return target

    def fill(self, frames: Sequence[BlockFrame], payload: Sequence[memoryview]) -> None:
        """Copy blocks of a version into the model. Nothing of `payload` is read after the call."""
        later: dict[int, Entry] = {}
        for frame, content in zip(frames, payload, strict=True):
            target = self._targets[frame.block]
            if content.nbytes != target.nbytes:
                raise ValueError(f"block {frame.block} must have {target.nbytes} bytes, not {content.nbytes}")
            base = address_of(content)
            for offset, place, nbytes in target.runs:
                copy(place, base + offset, nbytes)
            for entry in target.later:
                later[entry.number] = entry
        for entry in later.values():
            if not entry.direct:
                entry.tensor.data.copy_(entry.flat.view(entry.spec.shape))
            if entry.shadow is not None:
                entry.shadow.copy_(entry.tensor.detach())

    # ------------------------------------------------------------ a turn

    def drop_gradients(self) -> None:
        """Drop the gradients of this turn. Every turn begins without gradients."""
        for entry in self._weights:
            entry.tensor.grad = None

    def begin_turn(self) -> None:
        """Restore the buffers of the version held and drop gradients: a slot has the same result in every worker."""
        for entry in self._weights:
            entry.tensor.grad = None
            entry.version = entry.tensor._version
        for entry in self._buffers:
            if entry.current() is not entry.tensor:
                entry.owner._buffers[entry.leaf] = entry.tensor
            assert entry.shadow is not None
            # Copied even if torch's version counter says "unchanged": batch_norm does not raise it for its statistics.
            entry.tensor.data.copy_(entry.shadow)

    @property
    def has_gradient(self) -> bool:
        """Whether any parameter has a gradient."""
        return any(e.tensor.grad is not None for e in self.parameters)

    def check_untouched(self) -> None:
        """Check that the script has not changed the weights. Only the job may change them, between turns.

        Raises:
            LoopError: the loop wrote to a parameter (torch shows most such writes, not those through `.data`).
        """
        for entry in self._weights:
            tensor = entry.tensor
            if tensor._version != entry.version:
                raise LoopError(
                    f"the script wrote to {entry.spec.name}: since prepare() parameters belong to the job. Leave "
                    "updates to the prepared optimizer (a second optimizer or an in-place write would be lost), and "
                    "swap weights for a measurement on a copy (copy.deepcopy(model))"
                )
            if entry.owner._parameters[entry.leaf] is not tensor:
                raise LoopError(f"{entry.spec.name} was replaced after prepare(): prepare the model in its final form")
            if tensor.data_ptr() != entry.place:
                raise LoopError(
                    f"{entry.spec.name} was given other memory after prepare() (by .to() or .data =): prepare the "
                    "model in its final form"
                )

    def made(self) -> Made | None:
        """The gradients and changed buffers of this turn; None if it made no gradient.

        Raises:
            LoopError: a gradient is sparse, or a buffer has another shape or dtype than before.
        """
        values: dict[int, torch.Tensor] = {}
        for entry in self.parameters:
            grad = entry.tensor.grad
            if grad is not None:
                if grad.layout is not torch.strided:
                    raise LoopError(f"{entry.spec.name} has a sparse gradient: use sparse=False for dense tables")
                values[entry.number] = grad
        if not values:
            return None
        for entry in self._buffers:
            changed = _changed(entry)
            if changed is not None:
                values[entry.number] = changed
        absent = self._every.difference(values)
        return Made(values, self._carried.get(absent) or self._carry(absent))

    def _carry(self, absent: frozenset[int]) -> Carried:
        blocks = tuple(b for b in self._pushed if any(p.tensor not in absent for p in b.pieces))
        gaps = {p.tensor for b in blocks for p in b.pieces if p.tensor in absent}
        if len(self._carried) >= _CACHED:
            self._carried.clear()
        carried = self._carried[absent] = Carried(absent, blocks, tuple(sorted(gaps)))
        return carried

    # ------------------------------------------------------------ copy gradients and buffers into push buffers

    def write_all(self, made: Made, into: PushBuffer) -> None:
        """Copy all gradients and changed buffers of the turn into the push buffer `into`."""
        for number, value in made.values.items():
            if plain(value, self._dtypes[number]):
                address, nbytes = into.runs[number]
                copy(address, value.data_ptr(), nbytes)
            else:
                into.places[number].copy_(value.detach())
        for number in made.carried.gaps:
            self._bridge(number, into.places[number], slice(None))

    def write(self, values: Mapping[int, torch.Tensor], into: PushBuffer, blocks: Iterable[BlockSpec]) -> None:
        """Copy those parts of `values` (by tensor number) that lie in `blocks` into the push buffer `into`."""
        plain_values: dict[int, torch.Tensor] = {}
        for block in blocks:
            dtype, base = DTYPES[block.dtype], into.addresses[block.index]
            size = dtype.itemsize
            for piece in block.pieces:
                if piece.tensor not in values:
                    run = slice(piece.start, piece.start + piece.numel)
                    self._bridge(piece.tensor, into.places[piece.tensor].view(-1)[run], run)
                    continue
                value = plain_values.get(piece.tensor)
                if value is None:
                    value = plain_values[piece.tensor] = flat(values[piece.tensor], dtype)
                place = base + piece.offset * size
                copy(place, value.data_ptr() + piece.start * size, piece.numel * size)

    def holds(self, buffer: PushBuffer, block: BlockSpec, values: Mapping[int, torch.Tensor]) -> bool:
        """Whether the content of `block` in `buffer` equals `values`, bit for bit.

        Nothing else shows a write through `.data`.
        """
        dtype, base = DTYPES[block.dtype], buffer.addresses[block.index]
        for piece in block.pieces:
            if piece.tensor not in values:
                return False
            value = flat(values[piece.tensor], dtype)
            place = base + piece.offset * dtype.itemsize
            if compare(place, value.data_ptr() + piece.start * dtype.itemsize, piece.numel * dtype.itemsize):
                return False
        return True

    def _bridge(self, number: int, place: torch.Tensor, run: slice) -> None:
        """Fill the place of an absent tensor with values that do not change the sum of a step."""
        entry = self.entries[number]
        if entry.spec.kind == Kind.PARAMETER:
            place.fill_(-0.0)  # x + -0.0 is x for every x, signs of zero included
        else:
            place.copy_(entry.flat[run].view(place.shape))

    def initial(self) -> Made:
        """The present weights and buffers, frozen ones included, for version 0."""
        values = {entry.number: entry.tensor.detach() for entry in self.entries}
        return Made(values, Carried(frozenset(), tuple(self.blocks), ()))


def _changed(entry: Entry) -> torch.Tensor | None:
    """The buffer of `entry` if the turn changed it, else None."""
    now = entry.current()
    if now is None:
        return None
    if now.shape != entry.tensor.shape or now.dtype != entry.tensor.dtype:
        raise LoopError(f"buffer {entry.spec.name} changed its shape or dtype in the loop: they must stay as prepared")
    assert entry.shadow is not None
    return None if torch.equal(now, entry.shadow) else now.detach()
