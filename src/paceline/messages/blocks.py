"""Gradients and weights: between workers and servers, the only messages that raw frames follow."""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.types import ITEM_NBYTES, Fence


class BlockFrame(msgspec.Struct, frozen=True, array_like=True):
    """Declares one frame: `numel` elements of `dtype`, written as `codec` says (see `paceline.wire.codecs`).

    `rev` counts the pushes of this block within one attempt.
    """

    block: int
    dtype: str
    numel: int
    rev: int = 0
    codec: str = "raw"

    @property
    def nbytes(self) -> int:
        """The bytes of the elements once they are decoded."""
        return self.numel * ITEM_NBYTES[self.dtype]


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """Ends an attempt: what it weighs and which push of each block counts.

    `absent` lists the tensors for which the turn made no gradient (or whose buffer did not change); `revs` lists
    (block, rev) for the blocks of this server that carry something.
    """

    weight: float
    absent: tuple[int, ...]
    revs: tuple[tuple[int, int], ...]


class SumMeta(msgspec.Struct, frozen=True, array_like=True):
    """What must be known of a complete sum besides its frames, to apply it as its primary does.

    `touched` are the blocks that some slot had, `full` those of which it had every tensor; `present` are the tensors
    that some slot had of the others.
    """

    weight: float
    slots: int
    touched: tuple[int, ...] = ()
    full: tuple[int, ...] = ()
    present: tuple[int, ...] = ()


class Push(Message, frozen=True):
    """Gradients of one attempt; provisional until a push with `seal` arrives. Frames follow, one a `BlockFrame`.

    `weight` is what the seal will say, unless the slot turns out empty.
    """

    req: int
    incarnation: int
    epoch: int
    step: int
    slot: int
    fence: Fence
    base: int
    blocks: tuple[BlockFrame, ...]
    seal: Seal | None = None
    weight: float = 1.0


class PushAck(Message, frozen=True):
    """What became of a push: held, duplicate, or late (the step is committed already)."""

    req: int
    outcome: str


class Pull(Message, frozen=True):
    """Read blocks. `exact` names a version; -1 means the newest with watermark >= `watermark` that has `after`.

    Answered when it can be; `have` lets the server leave out blocks that have not changed since that version.
    """

    req: int
    incarnation: int
    epoch: int
    exact: int
    watermark: int = 0
    after: int = -2
    have: int = -1
    blocks: tuple[int, ...] | None = None


class PullReply(Message, frozen=True):
    """The blocks at `version`; frames follow. A large answer comes in `parts`, numbered from 0, in model order."""

    req: int
    incarnation: int
    version: int
    watermark: int
    blocks: tuple[BlockFrame, ...]
    part: int = 0
    parts: int = 1
