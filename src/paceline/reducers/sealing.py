"""`optimizer.step()` seals the slot and first pushes every gradient that changed since it was pushed.

Blocks may be pushed before the seal, while backward runs. The script may change a gradient after that push without a
trace, so `seal_offered` compares each of them with its present bits. `sealing_pushes` makes the pushes that end the
attempt: each has the blocks that its server does not have yet, and the seal, which names the revision of every block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from paceline.blocks.memcpy import flat
from paceline.messages import BlockFrame, Seal
from paceline.reducers.base import Carried, Made
from paceline.reducers.model_blocks import ModelBlocks
from paceline.reducers.push_buffers import PushBuffer
from paceline.types import NodeId


class ServerPush(NamedTuple):
    """A push to one server without its payload."""

    server: NodeId
    frames: tuple[BlockFrame, ...]
    seal: Seal | None


class SealedContent(NamedTuple):
    """What a turn was sealed with. `buffer` has the blocks of revision 0, `other` those of revision 1 (see `revs`)."""

    carried: Carried
    weight: float
    revs: Mapping[int, int]
    buffer: PushBuffer | None
    other: PushBuffer | None


class Offered(NamedTuple):
    """The `blocks` that a turn has pushed before its seal, from `buffer`; `moved` if they have other servers now."""

    blocks: Collection[int]
    buffer: PushBuffer
    moved: bool


def seal_offered(
    model: ModelBlocks, made: Made, weight: float, offered: Offered, take_buffer: Callable[[], PushBuffer]
) -> SealedContent:
    """Copy all blocks that must be pushed with the seal: those not offered, and offered ones that have changed since.

    A changed block gets revision 1, in a second buffer: servers may still read the first one, where it must not change.
    """
    values = {n: flat(v, v.dtype) for n, v in made.values.items()}
    before = [b for b in made.carried.blocks if b.index in offered.blocks]
    changed = [b for b in before if offered.moved or not model.holds(offered.buffer, b, values)]
    other = None
    if changed:
        other = take_buffer()
        model.write(values, other, changed)
    rest = [b for b in made.carried.blocks if b.index not in offered.blocks]
    model.write(values, offered.buffer, rest)
    return SealedContent(made.carried, weight, {b.index: 1 for b in changed}, offered.buffer, other)


def sealing_pushes(
    by_server: Mapping[NodeId, tuple[int, ...]],
    carried: Carried,
    weight: float,
    revs: Mapping[int, int],
    sent: Collection[int],
) -> list[ServerPush]:
    """Make a push with a seal for every server. The seal names all its blocks; the frames are those not yet `sent`."""
    pushes = []
    chosen = {b.index: b for b in carried.blocks}
    for server, owned in by_server.items():
        theirs = [chosen[i] for i in owned if i in chosen]
        tensors = {p.tensor for b in theirs for p in b.pieces}
        absent = tuple(sorted(tensors & carried.absent))
        seal = Seal(weight, absent, tuple((b.index, revs.get(b.index, 0)) for b in theirs))
        frames = (BlockFrame(b.index, b.dtype, b.numel, revs.get(b.index, 0)) for b in theirs if b.index not in sent)
        pushes.append(ServerPush(server, tuple(frames), seal))
    return pushes
