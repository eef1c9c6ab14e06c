"""Copies of blocks: a primary sends sums to its backups and whole blocks to joining copies.

These go from server to server, except the reports to the coordinator about copies and about peers without an answer.
"""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.blocks import BlockFrame, SumMeta
from paceline.types import Fence, NodeId


class CopyFrame(msgspec.Struct, frozen=True, array_like=True):
    """Declares one frame of a copy: the value of a block (`name` is ""), or an optimizer state by name.

    `piece` is the number of the piece of the block that the state belongs to, -1 for the whole block. A `scalar` has
    one element and no dimension. Always raw: copies have no codec.
    """

    block: int
    piece: int
    name: str
    dtype: str
    numel: int
    scalar: bool = False


class Replicate(Message, frozen=True):
    """The complete sum of a step, for blocks of which the receiver has a copy. One frame follows for each of `blocks`.

    `fence` names the attempt if each attempt has its own sum; `fences` are all attempts in the sum, in slot order. With
    `joining` the receiver does not have the whole copy yet. A large sum comes in `parts`, numbered from 0, each with
    other blocks. The message is repeated until `Replicated` comes. `revision` is that of the step's segment.
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
    revision: int = 0


class Replicated(Message, frozen=True):
    """The reply to `Replicate`: the backup has this part of the sum."""

    req: int
    incarnation: int
    epoch: int


class CopyPart(Message, frozen=True):
    """Blocks at `version` for a joining copy, in `parts` numbered from 0. Frames follow.

    `chains` has the hash chains of these blocks. Repeated until `CopyPartAck`.
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
    """The reply to `CopyPart`: the server has this part of the copy."""

    req: int
    incarnation: int
    epoch: int
    part: int


class Copied(Message, frozen=True):
    """To the coordinator: this server has the newest state of all blocks that it copies from `source`.

    Repeated until `CopyOver`.
    """

    incarnation: int
    epoch: int
    source: NodeId


class Chained(Message, frozen=True):
    """To the coordinator: the hash chains of the blocks that this server backs up, at `version`, for a checkpoint."""

    incarnation: int
    epoch: int
    version: int
    chains: tuple[tuple[int, bytes], ...]


class Hashed(Message, frozen=True):
    """To the coordinator: the content hashes of blocks that this server holds in sync, at `version`, for a checkpoint.

    A primary reports blocks that others copy, a backup its copies. Not repeated: the next checkpoint compares again.
    """

    incarnation: int
    epoch: int
    version: int
    contents: tuple[tuple[int, bytes], ...]


class CopyOver(Message, frozen=True):
    """The reply to `Copied`: the coordinator knows that the copy from `source` is complete."""

    generation: int
    incarnation: int
    epoch: int
    source: NodeId


class Unreachable(Message, frozen=True):
    """To the coordinator, from a server or a worker: `peer` has not answered for `silent_s`.

    Repeated while that lasts.
    """

    peer: NodeId
    silent_s: float
    epoch: int = 0


class Reachable(Message, frozen=True):
    """To the coordinator: `peer` answers again."""

    peer: NodeId


class Probe(Message, frozen=True, tag="Try"):
    """To a server: try to reach `peer`, which listens at `address`, and report `Reachable` if it answers.

    Repeated while the coordinator needs to know.
    """

    generation: int
    peer: NodeId
    address: str


class Echo(Message, frozen=True, tag="Hail"):
    """From one server to another, on a probe: answer with `Echoed`."""


class Echoed(Message, frozen=True, tag="Hailed"):
    """The answer to `Echo`."""
