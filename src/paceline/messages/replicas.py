"""Copies of blocks: how a primary keeps its backups, and those that are to become backups, where it is itself.

All of these go from server to server, but for what is said to the coordinator of who has a copy, and who cannot be
reached.
"""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.blocks import BlockFrame, SumMeta
from paceline.types import Fence, NodeId


class CopyFrame(msgspec.Struct, frozen=True, array_like=True):
    """Declares one raw frame of a copy: the value of a block (`name` is ""), or an optimizer's state by name.

    `piece` is the number of the piece within its block whose state it is, -1 where it is the whole block's. A `scalar`
    has one element and no dimension.
    """

    block: int
    piece: int
    name: str
    dtype: str
    numel: int
    scalar: bool = False


class Replicate(Message, frozen=True):
    """The complete sum of a step, of blocks that the receiver has copies of. Frames follow, one a `BlockFrame`.

    `fence` names the sum where attempts are summed apart, `fences` are all attempts in it, in slot order. With
    `joining` these are blocks of which the receiver does not have all yet. A large sum comes in `parts`, numbered
    from 0, each with blocks of its own. Said again until `Replicated`.
    """

    req: int
    incarnation: int
    epoch: int
    step: int
    fence: Fence | None
    fences: tuple[Fence, ...]
    meta: SumMeta
    blocks: tuple[BlockFrame, ...]
    joining: bool = False
    part: int = 0
    parts: int = 1


class Replicated(Message, frozen=True):
    """That part of the sum is held here as well."""

    req: int
    incarnation: int
    epoch: int


class CopyPart(Message, frozen=True):
    """Blocks at `version` for a server that is to have a copy, in `parts` numbered from 0. Frames follow.

    `chains` has the hash chains of all these blocks. Said again until `CopyPartAck`.
    """

    req: int
    incarnation: int
    epoch: int
    version: int
    part: int
    parts: int
    frames: tuple[CopyFrame, ...]
    chains: tuple[tuple[int, bytes], ...] = ()


class CopyPartAck(Message, frozen=True):
    """That part is here."""

    req: int
    incarnation: int
    epoch: int
    part: int


class Copied(Message, frozen=True):
    """To the coordinator: this server has caught up with `source` on the blocks that it was to copy from there.

    Said again until `CopyOver`.
    """

    incarnation: int
    epoch: int
    source: NodeId


class Chained(Message, frozen=True):
    """To the coordinator: the hash chains of the copies here at `version`, which goes to a checkpoint."""

    incarnation: int
    epoch: int
    version: int
    chains: tuple[tuple[int, bytes], ...]


class CopyOver(Message, frozen=True):
    """The coordinator has noted that the copy from `source` is complete."""

    generation: int
    incarnation: int
    epoch: int
    source: NodeId


class Unreachable(Message, frozen=True):
    """To the coordinator, from a server or a worker: nothing that it says to `peer` has been answered for `silent_s`.

    Said again as long as that is so.
    """

    peer: NodeId
    silent_s: float
    epoch: int = 0


class Reachable(Message, frozen=True):
    """To the coordinator: `peer` answers (again)."""

    peer: NodeId


class Try(Message, frozen=True):
    """To a server: see whether you reach `peer`, which listens at `address`, and say `Reachable` if you do.

    Said again as long as the coordinator wants to know.
    """

    generation: int
    peer: NodeId
    address: str


class Hail(Message, frozen=True):
    """From one server to another: do you hear me?"""


class Hailed(Message, frozen=True):
    """I do."""
