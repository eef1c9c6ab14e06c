"""Messages between workers and servers, which carry gradients and weights in the frames that follow them."""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.work import Sealed
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
    """Ends an attempt: its weight, and which push of each block counts.

    `absent` lists the tensors without a gradient (or whose buffer did not change); `revs` lists (block, rev) of the
    blocks of this server that have one.
    """

    weight: float
    absent: tuple[int, ...]
    revs: tuple[tuple[int, int], ...]


class SumMeta(msgspec.Struct, frozen=True, array_like=True):
    """What a backup needs besides the frames of a complete sum, to apply the sum exactly as the primary does.

    `touched` are the blocks with a gradient from some slot, `full` those where every tensor has one; `present` are the
    tensors with a gradient in the other touched blocks.
    """

    weight: float
    slots: int
    touched: tuple[int, ...] = ()
    full: tuple[int, ...] = ()
    present: tuple[int, ...] = ()


class Push(Message, frozen=True):
    """Gradients of one attempt, which count only after a push with `seal`. One frame follows for each of `blocks`.

    `base` is the version on which the attempt was computed. `weight` is the weight that the seal will have, unless the
    slot turns out to be empty. With the seal comes the `report` of the slot. `ahead` is the placement epoch in which
    `base` was read before its commit; 0 if its commit was known. `revision` is that of the lease's segment.
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
    report: Sealed | None = None
    ahead: int = 0
    revision: int = 0


class PushAck(Message, frozen=True):
    """The reply to `Push`; `outcome` is held, duplicate, or late (the step is already committed)."""

    req: int
    outcome: str


class Pull(Message, frozen=True):
    """Read blocks (None: all) at version `exact`; -1 means the newest one with this `watermark` that contains `after`.

    The server answers once it has such a version. It leaves out blocks that have not changed since version `have`.
    With `ahead`, the pull is for a lease: the server may answer before `exact` is committed, once it is ready for it.
    """

    req: int
    incarnation: int
    epoch: int
    exact: int
    watermark: int = 0
    after: int = -2
    have: int = -1
    blocks: tuple[int, ...] | None = None
    ahead: bool = False


class PullReply(Message, frozen=True):
    """Blocks at `version`; frames follow. A large answer comes in `parts`, numbered from 0, in model order.

    With `ahead`, `version` is not committed yet: the blocks are those that its commit will make in this epoch.
    """

    req: int
    incarnation: int
    version: int
    watermark: int
    blocks: tuple[BlockFrame, ...]
    part: int = 0
    parts: int = 1
    ahead: bool = False
