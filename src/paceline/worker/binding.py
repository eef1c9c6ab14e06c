"""The user's model and optimizer as blocks: what is staged for a push, and where a pull goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from paceline.blocks import DTYPE_NAMES, DTYPES, bytes_of, clean_name, new_block, piece_of, tensor_of
from paceline.config.dials import OPTIMIZERS
from paceline.core.layout import cut
from paceline.errors import LoopError, UsageError
from paceline.messages import BlockFrame
from paceline.transport.base import Delivery
from paceline.types import BlockSpec, Hyper, Kind, ModelSpec, OptimizerSpec, TensorSpec


@dataclass(slots=True)
class Stage:
    """Memory for one push of every block. Free again when every server has answered and no lane reads it."""

    buffers: dict[int, torch.Tensor]
    frames: dict[int, memoryview]
    requests: set[int] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)

    @classmethod
    def make(cls, blocks: Iterable[BlockSpec]) -> Stage:
        """Allocate it."""
        buffers = {b.index: new_block(b) for b in blocks}
        return cls(buffers, {i: bytes_of(t) for i, t in buffers.items()})

    def free(self, unacked: Iterable[int]) -> bool:
        """Whether it may be written."""
        return self.requests.isdisjoint(unacked) and all(d.done for d in self.deliveries)


@dataclass(slots=True)
class _Entry:
    """One tensor of the model. `shadow` is the state at the version held, for buffers that a slot may change."""

    spec: TensorSpec
    owner: torch.nn.Module
    leaf: str
    tensor: torch.Tensor
    flat: torch.Tensor
    direct: bool
    shadow: torch.Tensor | None = None
    version: int = 0
    place: int = 0

    def current(self) -> torch.Tensor | None:
        """The tensor that the module holds now (a script may have assigned a new buffer)."""
        table = self.owner._parameters if self.spec.kind in _TRAINED else self.owner._buffers
        return table[self.leaf]


_TRAINED = (Kind.PARAMETER, Kind.FROZEN)


class Binding:
    """Reads gradients out of a model and writes versions into it, in place. The script's objects stay its own."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None) -> None:
        _check_optimizer(optimizer)
        if clip_norm is not None and not clip_norm > 0:
            raise UsageError(f"clip_norm must be positive, not {clip_norm}")
        self.model = model
        self.optimizer = optimizer
        self._entries = _collect(model, optimizer)
        deterministic = all(e.tensor.device.type == "cpu" for e in self._entries)
        self.spec = ModelSpec(
            tuple(e.spec for e in self._entries),
            OptimizerSpec(type(optimizer).__name__, self.hyper()),
            clip_norm,
            deterministic or torch.are_deterministic_algorithms_enabled(),
        )
        self.blocks = cut(self.spec.tensors)
        self._parameters = [e for e in self._entries if e.spec.kind == Kind.PARAMETER]
        self._buffers = [e for e in self._entries if e.spec.kind in (Kind.MEAN, Kind.LAST)]
        for entry in self._buffers:
            entry.shadow = entry.tensor.detach().clone()
        self._pushed = [b for b in self.blocks if b.kind != Kind.FROZEN]

    def hyper(self) -> Hyper:
        """The optimizer's numbers as they are now."""
        keys = self.optimizer.defaults.keys()
        return tuple(
            {k: _number(type(self.optimizer).__name__, k, group[k]) for k in keys}
            for group in self.optimizer.param_groups
        )

    # ------------------------------------------------------------ versions in

    def fill(self, frames: Sequence[BlockFrame], payload: Sequence[Any]) -> None:
        """Put blocks of a version into the model."""
        touched: dict[int, _Entry] = {}
        for frame, content in zip(frames, payload, strict=True):
            block = self.blocks[frame.block]
            source = tensor_of(content, block.dtype)
            for piece in block.pieces:
                entry = self._entries[piece.tensor]
                entry.flat[piece.start : piece.start + piece.numel].copy_(piece_of(source, piece))
                if not entry.direct or entry.shadow is not None:
                    touched[piece.tensor] = entry
        for entry in touched.values():
            if not entry.direct:
                entry.tensor.data.copy_(entry.flat.view(entry.spec.shape))
            if entry.shadow is not None:
                entry.shadow.copy_(entry.tensor.detach())

    # ------------------------------------------------------------ a turn

    def begin_turn(self) -> None:
        """Every slot starts from the version's buffers and without gradients, whoever computes it."""
        for entry in self._entries:
            if entry.shadow is not None:
                if entry.current() is not entry.tensor:
                    entry.owner._buffers[entry.leaf] = entry.tensor
                # Not only where the version counter moved: batch_norm writes its statistics without telling it.
                entry.tensor.data.copy_(entry.shadow)
            else:
                entry.tensor.grad = None
            entry.version = entry.tensor._version

    def restore(self) -> None:
        """Undo what a validation did to buffers."""
        self.begin_turn()

    @property
    def has_gradient(self) -> bool:
        """Whether this turn made any gradient."""
        return any(e.tensor.grad is not None for e in self._parameters)

    def check_untouched(self) -> None:
        """Weights change between turns only.

        Raises:
            LoopError: the loop wrote to a parameter (where torch lets us see it).
        """
        for entry in self._entries:
            if entry.shadow is None and entry.tensor._version != entry.version:
                raise LoopError(
                    f"the script wrote to {entry.spec.name}: since prepare() parameters belong to the job. Leave "
                    "updates to the prepared optimizer (a second optimizer or an in-place write would be lost), and "
                    "swap weights for a measurement on a copy (copy.deepcopy(model))"
                )
            if entry.current() is not entry.tensor:
                if entry.shadow is not None:
                    continue
                raise LoopError(f"{entry.spec.name} was replaced after prepare(): prepare the model in its final form")
            if entry.shadow is None and entry.tensor.data_ptr() != entry.place:
                raise LoopError(
                    f"{entry.spec.name} was given other memory after prepare() (by .to() or .data =): prepare the "
                    "model in its final form"
                )

    def stage(self, into: Stage) -> tuple[frozenset[int], tuple[BlockSpec, ...]]:
        """Copy gradients and changed buffers into `into`; returns absent tensors and the blocks that carry anything."""
        absent = set()
        sources: dict[int, torch.Tensor] = {}
        for number, entry in enumerate(self._entries):
            value = self._value(entry)
            if value is None:
                absent.add(number)
            else:
                sources[number] = value
        carrying = []
        for block in self._pushed:
            if all(p.tensor in absent for p in block.pieces):
                continue
            carrying.append(block)
            buffer = into.buffers[block.index]
            for piece in block.pieces:
                place = piece_of(buffer, piece)
                source = sources.get(piece.tensor)
                if source is not None:
                    place.copy_(source[piece.start : piece.start + piece.numel])
                elif block.kind == Kind.PARAMETER:
                    place.fill_(-0.0)  # x + -0.0 is x for every x, signs of zero included
                else:
                    place.copy_(self._entries[piece.tensor].flat[piece.start : piece.start + piece.numel])
        return frozenset(absent), tuple(carrying)

    def _value(self, entry: _Entry) -> torch.Tensor | None:
        """What this turn made of one tensor, flat: its gradient, or its changed buffer."""
        if entry.spec.kind == Kind.FROZEN:
            return None
        if entry.shadow is None:
            grad = entry.tensor.grad
            if grad is None:
                return None
            if grad.layout != torch.strided:
                raise LoopError(f"{entry.spec.name} has a sparse gradient: use sparse=False for dense tables")
            return grad.detach().reshape(-1)
        now = entry.current()
        if now is None:
            return None
        if now.shape != entry.tensor.shape or now.dtype != entry.tensor.dtype:
            raise LoopError(f"buffer {entry.spec.name} changed its shape or dtype in the loop")
        return None if torch.equal(now, entry.shadow) else now.detach().reshape(-1)

    def stage_initial(self, into: Stage) -> tuple[BlockSpec, ...]:
        """Copy the weights as they are: they become version 0."""
        for block in self.blocks:
            buffer = into.buffers.get(block.index)
            if buffer is None:
                buffer = into.buffers[block.index] = new_block(block)
                into.frames[block.index] = bytes_of(buffer)
            for piece in block.pieces:
                flat = self._entries[piece.tensor].tensor.detach().reshape(-1)
                piece_of(buffer, piece).copy_(flat[piece.start : piece.start + piece.numel])
        return self.blocks

    def new_stage(self) -> Stage:
        """Memory for another push."""
        return Stage.make(self._pushed)


def _collect(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[_Entry]:
    groups = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
    entries: list[_Entry] = []
    seen: dict[int, str] = {}
    storages: dict[tuple[Any, ...], str] = {}
    for prefix, module in model.named_modules(remove_duplicate=True):
        for leaf, parameter in module._parameters.items():
            if parameter is None or id(parameter) in seen:
                continue
            name = clean_name(f"{prefix}.{leaf}" if prefix else leaf)
            seen[id(parameter)] = name
            if isinstance(parameter, UninitializedParameter):
                raise UsageError(f"{name} is lazy and has not run yet: pass one batch through the model, then prepare")
            where = (str(parameter.device), parameter.untyped_storage().data_ptr())
            if parameter.numel() and where in storages:
                raise UsageError(
                    f"{name} and {storages[where]} are distinct parameters that share memory: tie them by assigning "
                    "the same Parameter object, or clone one"
                )
            storages[where] = name
            group = groups.get(id(parameter), -1)
            kind = Kind.PARAMETER if group >= 0 else Kind.FROZEN
            entries.append(_entry(name, module, leaf, parameter, kind, group))
    foreign = [k for k in groups if k not in seen]
    if foreign:
        raise UsageError(f"the optimizer holds {len(foreign)} parameter(s) that are not the model's")
    if not groups:
        raise UsageError("the optimizer holds no parameter")
    buffers: set[int] = set()
    for prefix, module in model.named_modules(remove_duplicate=True):
        for leaf, buffer in module._buffers.items():
            if buffer is None or id(buffer) in buffers:
                continue
            buffers.add(id(buffer))
            name = clean_name(f"{prefix}.{leaf}" if prefix else leaf)
            if isinstance(buffer, UninitializedBuffer):
                raise UsageError(f"{name} is lazy and has not run yet: pass one batch through the model, then prepare")
            kind = Kind.MEAN if buffer.is_floating_point() else Kind.LAST
            entries.append(_entry(name, module, leaf, buffer, kind, -1))
    # The digest and the layout follow the model's own order: all parameters, then all buffers.
    return entries


def _entry(name: str, owner: torch.nn.Module, leaf: str, tensor: torch.Tensor, kind: Kind, group: int) -> _Entry:
    if tensor.dtype not in DTYPE_NAMES:
        raise UsageError(f"{name} has dtype {tensor.dtype}, which does not travel; use one of {', '.join(DTYPES)}")
    if tensor.device.type == "meta":
        raise UsageError(f"{name} is on the meta device: give it memory first")
    spec = TensorSpec(name, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], kind, group)
    direct = tensor.device.type == "cpu" and tensor.is_contiguous()
    flat = tensor.data.view(-1) if direct else torch.empty(tensor.numel(), dtype=tensor.dtype)
    if not direct:
        flat.copy_(tensor.detach().reshape(-1))
    place = tensor.data_ptr()
    return _Entry(spec, owner, leaf, tensor, flat, direct, version=tensor._version, place=place)


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    kind = type(optimizer)
    if kind.__name__ not in OPTIMIZERS or getattr(torch.optim, kind.__name__, None) is not kind:
        raise UsageError(
            f"{kind.__name__} does not run on servers, where an update must be element-wise and known by name: "
            f"use one of torch.optim's {', '.join(OPTIMIZERS)}"
        )
    used = [s for s in optimizer.state.values() if any(k != "sum" and _nonzero(v) for k, v in s.items())]
    if used:
        raise UsageError("the optimizer has taken steps already: prepare it before the first one")


def _nonzero(value: Any) -> bool:
    return bool(value.any()) if isinstance(value, torch.Tensor) else bool(value)


def _number(optimizer: str, key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, tuple | list) and all(isinstance(v, int | float) for v in value):
        return tuple(float(v) for v in value)
    raise UsageError(f"{optimizer}'s {key} must be a number to travel to the servers, not {value!r}")
