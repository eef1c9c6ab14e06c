"""Check a received message and its frames before a role sees them.

The checks compute with Python integers, which do not overflow. They allocate nothing for a size that a peer only
claims, and a frame that fails a check never reaches torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import RefusedFrameError
from paceline.messages import (
    AskSlot,
    Assign,
    BlockFrame,
    CopyFrame,
    CopyPart,
    Message,
    Prepare,
    Pull,
    PullReply,
    Push,
    Replicate,
    SlotPrepared,
)
from paceline.types import INIT_STEP
from paceline.wire.codecs import decoded_nbytes, item_nbytes
from paceline.wire.headers import MAX_HEADER_NBYTES

MAX_NDIM = 8
MAX_NUMEL = 1 << 48
_MAX_COUNTER = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """The limits of one message. A message within these limits is never refused because of its size."""

    max_header_nbytes: int = MAX_HEADER_NBYTES
    max_frame_nbytes: int = 64 << 20
    max_message_nbytes: int = 1 << 30
    max_frames: int = 4096

    def __post_init__(self) -> None:
        """Refuse limits with which no message could be sent."""
        if min(self.max_header_nbytes, self.max_frame_nbytes, self.max_message_nbytes, self.max_frames) < 1:
            raise ValueError(f"every wire limit must be at least 1: {self}")


DEFAULT_LIMITS = WireLimits()


def shape_numel(shape: Sequence[int], *, max_numel: int = MAX_NUMEL) -> int:
    """The number of elements of `shape`.

    Raises:
        RefusedFrameError: rule ``shape`` for more than 8 dimensions, a negative dimension, or more than `max_numel`
            elements (a number that overflows 64 bits is far above `max_numel`).
    """
    if len(shape) > MAX_NDIM:
        raise RefusedFrameError("shape", f"{len(shape)} dimensions, at most {MAX_NDIM}")
    numel = 1
    for dim in shape:
        if dim < 0:
            raise RefusedFrameError("shape", f"dimension {dim}")
        numel *= dim
    # Check each dimension too: an attacker could hide a huge dimension beside a zero, which makes the product 0.
    if numel > max_numel or any(dim > max_numel for dim in shape):
        raise RefusedFrameError("shape", f"{list(shape)} has more than {max_numel} elements")
    return numel


def message_blocks(message: Message) -> tuple[BlockFrame, ...]:
    """What `message` declares about each of its frames; empty for messages without frames."""
    if isinstance(message, (Push, PullReply, Replicate, SlotPrepared)):
        return message.blocks
    return ()


def check_frames(
    blocks: Sequence[BlockFrame], frames: Sequence[memoryview], limits: WireLimits = DEFAULT_LIMITS
) -> None:
    """Check that `frames` have the number and sizes that `blocks` declare, within `limits` before and after decoding.

    Raises:
        RefusedFrameError: rule ``frame-count``, ``block``, ``duplicate-block``, ``rev``, ``codec``,
            ``dtype``, ``numel``, ``frame-size``, ``frame-cap`` or ``message-cap``.
    """
    _check_count(len(blocks), len(frames), limits)
    seen: set[int] = set()
    total, most = 0, limits.max_frame_nbytes
    for declared, frame in zip(blocks, frames, strict=True):
        nbytes = frame.nbytes
        decoded = decoded_nbytes(declared, nbytes)
        largest = decoded if decoded > nbytes else nbytes
        block = declared.block
        if largest > most or not 0 <= block <= _MAX_COUNTER or not 0 <= declared.rev <= _MAX_COUNTER:
            raise _broken_rule(declared, largest, limits)
        total += largest
        seen.add(block)
    if len(seen) < len(blocks):
        raise RefusedFrameError("duplicate-block", "the message has a block twice")
    _check_total(total, limits)


def _check_copies(
    copies: Sequence[CopyFrame], frames: Sequence[memoryview], limits: WireLimits = DEFAULT_LIMITS
) -> None:
    """Check the frames of a copy as `check_frames` does. In a copy a block has several frames, each with a name."""
    _check_count(len(copies), len(frames), limits)
    seen: set[tuple[int, int, str]] = set()
    total = 0
    for copy, frame in zip(copies, frames, strict=True):
        declared = BlockFrame(copy.block, copy.dtype, copy.numel)
        nbytes = decoded_nbytes(declared, frame.nbytes)
        if nbytes > limits.max_frame_nbytes or not 0 <= copy.block <= _MAX_COUNTER:
            raise _broken_rule(declared, nbytes, limits)
        total += nbytes
        name = copy.block, copy.piece, copy.name
        if name in seen:
            raise RefusedFrameError(
                "duplicate-block", f"the message has {copy.name[:40]!r} of block {copy.block} twice"
            )
        seen.add(name)
    _check_total(total, limits)


def _check_count(declared: int, came: int, limits: WireLimits) -> None:
    if came > limits.max_frames or declared > limits.max_frames:
        raise RefusedFrameError("frame-count", f"more than {limits.max_frames} frames")
    if came != declared:
        raise RefusedFrameError("frame-count", f"{declared} declared, {came} came")


def _broken_rule(declared: BlockFrame, nbytes: int, limits: WireLimits) -> RefusedFrameError:
    if not 0 <= declared.block <= _MAX_COUNTER:
        return RefusedFrameError("block", f"block {declared.block}")
    if not 0 <= declared.rev <= _MAX_COUNTER:
        return RefusedFrameError("rev", f"block {declared.block} has rev {declared.rev}, which is not possible")
    return RefusedFrameError("frame-cap", f"{nbytes} bytes, at most {limits.max_frame_nbytes}")


def _check_total(nbytes: int, limits: WireLimits) -> None:
    if nbytes > limits.max_message_nbytes:
        raise RefusedFrameError("message-cap", f"{nbytes} bytes, at most {limits.max_message_nbytes}")


def check_message(message: Message, frames: Sequence[memoryview], limits: WireLimits = DEFAULT_LIMITS) -> None:
    """Run every check of this module that applies to `message`. The transport calls this for each received message.

    Raises:
        RefusedFrameError: see `check_frames` and `shape_numel`; also rule ``range`` for an impossible step, slot, epoch
            or incarnation.
    """
    check = _CHECKS.get(type(message))
    if check is not None:
        check(message)
    if isinstance(message, CopyPart):
        _check_copies(message.frames, frames, limits)
        return
    blocks = message_blocks(message) if check is not None else ()
    if blocks or frames:
        check_frames(blocks, frames, limits)


def _check_spec(message: Any) -> None:
    for tensor in message.spec.tensors:
        shape_numel(tensor.shape)
        item_nbytes(tensor.dtype)


def _check_fields(**least: int) -> Callable[[Any], None]:
    """A check that the named fields of a message are at least so large, and fit into 63 bits."""
    read = [(name, low, operator.attrgetter(name)) for name, low in least.items()]

    def check(message: Any) -> None:
        for name, low, get in read:
            if not low <= get(message) <= _MAX_COUNTER:
                raise RefusedFrameError("range", f"{name} {get(message)}")

    return check


_ASKED_FROM_0 = ("req", "step", "slot", "segment.step", "segment.epoch", "segment.offset", "segment.end_step")
_ASKED_FROM_1 = ("segment.data_len", "segment.slots", "segment.batch_size")

_CHECKS: Mapping[type[Message], Callable[[Any], None]] = {
    Push: _check_fields(incarnation=0, epoch=0, step=INIT_STEP, slot=0),
    Pull: _check_fields(incarnation=0, epoch=0),
    PullReply: _check_fields(incarnation=0),
    Replicate: _check_fields(incarnation=0, epoch=0, step=INIT_STEP, part=0),
    CopyPart: _check_fields(incarnation=0, epoch=0, part=0),
    Prepare: _check_spec,
    Assign: _check_spec,
    AskSlot: _check_fields(**dict.fromkeys(_ASKED_FROM_0, 0), **dict.fromkeys(_ASKED_FROM_1, 1)),
    SlotPrepared: _check_fields(req=0),
}
