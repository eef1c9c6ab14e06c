"""A batch as typed values: its structure, and its tensors as flat bytes. Nothing is pickled, and no bit changes.

Tensors, numbers and texts in lists, tuples and dicts can be expressed so; `pack` says of any other batch why it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from paceline.errors import RefusedFrameError
from paceline.messages import BlockFrame
from paceline.messages.samplers import DictNode, ListNode, Node, TensorLeaf, TupleNode, ValueLeaf
from paceline.types import ITEM_NBYTES
from paceline.wire.frames import DEFAULT_LIMITS, shape_numel

Allocate = Callable[[int], memoryview]
"""Returns that many writable bytes, aligned to 64 bytes."""

_ALIGNMENT = 64
_DEPTH = 16
_LARGE_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Parcel:
    """A packed batch: its `structure`, and the `frames` that `blocks` declare, which lie in one allocation."""

    structure: Node
    blocks: tuple[BlockFrame, ...]
    frames: tuple[memoryview, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """A batch cannot be packed, for this `reason`."""

    reason: str


class _UnfitError(Exception):
    """Ends the walk through a batch; never leaves this module."""


@dataclass(slots=True)
class _Packing:
    """The parts of a batch so far: flat tensors, and the frames that they will be."""

    parts: list[torch.Tensor] = field(default_factory=list)
    blocks: list[BlockFrame] = field(default_factory=list)
    begins: set[int] = field(default_factory=set)

    def node(self, value: Any, depth: int) -> Node:
        """The structure of `value`, whose tensors are added to the parts."""
        kind = type(value)
        if depth > _DEPTH:
            raise _UnfitError(f"it is nested deeper than {_DEPTH}")
        if kind is torch.Tensor:
            return self.tensor(value)
        if value is None or kind in (bool, float, str) or (kind is int and -(2**63) <= value < 2**63):
            return ValueLeaf(value)
        if kind is list or kind is tuple:
            items = tuple(self.node(item, depth + 1) for item in value)
            return ListNode(items) if kind is list else TupleNode(items)
        if kind is dict and all(type(key) in (str, int) for key in value):
            return DictNode(tuple(value), tuple(self.node(item, depth + 1) for item in value.values()))
        raise _UnfitError(f"it contains a {kind.__module__}.{kind.__qualname__}")

    def tensor(self, tensor: torch.Tensor) -> TensorLeaf:
        """The leaf of `tensor`, whose elements are added to the parts in the order in which they lie in memory."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in ITEM_NBYTES or tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise _UnfitError(f"it contains a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}")
        if tensor.requires_grad or tensor.is_neg() or tensor.ndim > 8 or not _is_dense(tensor):
            raise _UnfitError("it contains a tensor that needs gradients or whose elements do not lie side by side")
        numel, size = tensor.numel(), tensor.element_size()
        if numel and tensor.data_ptr() in self.begins:
            raise _UnfitError("it contains the same tensor twice")
        self.begins.add(tensor.data_ptr())
        flat = tensor.as_strided((numel,), (1,))
        first, step = len(self.blocks), DEFAULT_LIMITS.max_frame_nbytes // size
        for start in range(0, numel, step):
            part = flat[start : start + step]
            self.parts.append(part)
            self.blocks.append(BlockFrame(len(self.blocks), dtype, part.numel()))
        strides = () if tensor.is_contiguous() else tuple(tensor.stride())
        return TensorLeaf(first, len(self.blocks) - first, dtype, tuple(tensor.shape), strides)


def pack(batch: Any, allocate: Allocate) -> Parcel | Unfit:
    """Copy the tensors of `batch` to memory of `allocate`, and describe the batch."""
    packing = _Packing()
    try:
        structure = packing.node(batch, 0)
    except _UnfitError as error:
        return Unfit(str(error))
    offsets, total = [], 0
    for block in packing.blocks:
        offsets.append(total)
        total += -(-block.nbytes // _ALIGNMENT) * _ALIGNMENT
    if total > DEFAULT_LIMITS.max_message_nbytes or len(packing.blocks) > DEFAULT_LIMITS.max_frames:
        return Unfit(f"it has {total} bytes in {len(packing.blocks)} parts, more than one message can have")
    memory = allocate(total) if total else memoryview(b"")
    frames = []
    for block, part, offset in zip(packing.blocks, packing.parts, offsets, strict=True):
        frame = memory[offset : offset + block.nbytes]
        torch.frombuffer(frame, dtype=torch.uint8).copy_(part.view(torch.uint8))
        frames.append(frame)
    return Parcel(structure, tuple(packing.blocks), tuple(frames), total)


def unpack(
    structure: Node, blocks: Sequence[BlockFrame], frames: Sequence[memoryview], allocate: Allocate | None = None
) -> Any:
    """The batch that was packed, in memory of its own: the caller may write to it, and nobody else does.

    Large tensors are in memory of `allocate`, if it is given.

    Raises:
        RefusedFrameError: rule ``structure``: no packed batch has this structure.
    """
    match structure:
        case TensorLeaf():
            return _tensor(structure, blocks, frames, allocate)
        case ValueLeaf(value=value):
            return value
        case ListNode(items=items):
            return [unpack(item, blocks, frames, allocate) for item in items]
        case TupleNode(items=items):
            return tuple(unpack(item, blocks, frames, allocate) for item in items)
        case DictNode(keys=keys, items=items):
            if len(keys) != len(items):
                raise RefusedFrameError("structure", f"{len(keys)} keys for {len(items)} values")
            return {key: unpack(item, blocks, frames, allocate) for key, item in zip(keys, items, strict=True)}


def _tensor(
    leaf: TensorLeaf, blocks: Sequence[BlockFrame], frames: Sequence[memoryview], allocate: Allocate | None
) -> torch.Tensor:
    numel, end = shape_numel(leaf.shape), leaf.first + leaf.frames
    mine = blocks[leaf.first : end] if 0 <= leaf.first <= end <= len(frames) else ()
    if (
        leaf.dtype not in ITEM_NBYTES
        or sum(block.numel for block in mine) != numel
        or any(block.dtype != leaf.dtype for block in mine)
        or not _fits(leaf.shape, leaf.strides, numel)
    ):
        raise RefusedFrameError("structure", f"{leaf.dtype} of shape {list(leaf.shape)} does not fit its frames")
    dtype = getattr(torch, leaf.dtype)
    nbytes = numel * ITEM_NBYTES[leaf.dtype]
    if allocate is not None and nbytes >= _LARGE_NBYTES:
        flat = torch.frombuffer(allocate(nbytes), dtype=dtype)
    else:
        flat = torch.empty(numel, dtype=dtype)
    start = 0
    for block, frame in zip(mine, frames[leaf.first : end], strict=True):
        flat[start : start + block.numel].copy_(torch.frombuffer(frame, dtype=dtype))
        start += block.numel
    return flat.as_strided(leaf.shape, leaf.strides) if leaf.strides else flat.view(leaf.shape)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of `tensor` lie side by side, in any order of its dimensions."""
    return tensor.is_contiguous() or _fits(tuple(tensor.shape), tuple(tensor.stride()), tensor.numel())


def _fits(shape: Sequence[int], strides: Sequence[int], numel: int) -> bool:
    """Whether a tensor of this shape and these strides fills `numel` elements exactly."""
    if not strides:
        return True
    if len(strides) != len(shape) or not prod(shape):
        return False
    expected = 1
    for stride, dim in sorted((stride, dim) for stride, dim in zip(strides, shape, strict=True) if dim > 1):
        if stride != expected:
            return False
        expected *= dim
    return expected == numel
