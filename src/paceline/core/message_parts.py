"""Large messages go in parts: where they are cut, and when a reader has all of one version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline.messages import BlockFrame, PullReply
from paceline.types import NodeId

PART_NBYTES = 16 << 20
"""Of one part: the reader fills it while the next is on its way."""

PUSH_NBYTES = 256 << 20
"""Of one push: large, because backward has sent most blocks already, and far from what a message may hold."""

_PUSH_FRAMES = 4096  # as many as a message may have
_MANY = 512  # parts of an answer: a queue holds some more messages
_MOST_NBYTES = 64 << 20  # with which a part of the smallest blocks has as many frames as it may

LEAST_NBYTES = 16 << 10
"""What a frame counts for at least: a message may not have too many of them."""


def cuts(sizes: Iterable[int], limit: int) -> list[int]:
    """The bounds of all parts of an answer whose blocks have these sizes: as many as fit, at least one block each."""
    bounds, nbytes, count = [0], 0, 0
    for number, size in enumerate(sizes):
        if nbytes and nbytes + size > limit:
            bounds.append(number)
            nbytes = 0
        nbytes += size
        count = number + 1
    return [*bounds, count]


def part_nbytes(total: int, least: int) -> int:
    """Of one part of an answer of `total` bytes: larger for a very large one, whose parts must fit into a queue."""
    return max(least, min(total // _MANY, _MOST_NBYTES))


def push_cuts(frames: Sequence[BlockFrame], limit: int) -> list[int]:
    """The bounds of all pushes that blocks for one server go in."""
    least = limit // _PUSH_FRAMES
    return cuts((max(least, frame.nbytes) for frame in frames), limit)


@dataclass(slots=True)
class _Arriving:
    version: int
    parts: set[int] = field(default_factory=set)


class Arrivals:
    """What has come of the answers that a reader waits for, by server."""

    def __init__(self) -> None:
        self._arriving: dict[NodeId, _Arriving] = {}

    def clear(self) -> None:
        """Nothing is waited for."""
        self._arriving.clear()

    def is_outdated(self, sender: NodeId, reply: PullReply) -> bool:
        """Whether a newer version is on its way (the pull was repeated), all of it: this one must not be filled in."""
        known = self._arriving.get(sender)
        return known is not None and reply.version < known.version

    def complete(self, sender: NodeId, reply: PullReply) -> bool:
        """Take note of `reply`; whether its version is all here."""
        if reply.parts > 1:
            known = self._arriving.get(sender)
            if known is None or known.version != reply.version:
                known = self._arriving[sender] = _Arriving(reply.version)
            known.parts.add(reply.part)
            if len(known.parts) < reply.parts:
                return False
        self._arriving.pop(sender, None)
        return True
