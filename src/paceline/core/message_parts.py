"""Large answers, sums and pushes go in parts: where they are cut, and when a reader has all parts of one version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline.messages import BlockFrame, PullReply
from paceline.types import NodeId

PART_NBYTES = 16 << 20
"""The size of one part: the reader copies it into the model while the next one is on its way."""

PUSH_NBYTES = 256 << 20
"""The size of one push: large, because most blocks were sent during backward, and far below the limit of a message."""

_PUSH_FRAMES = 4096  # the limit of a message
_MOST_PARTS = 512  # of one answer: fewer than the messages that a queue may hold
_MOST_NBYTES = 64 << 20  # of one part: a part of frames of `LEAST_NBYTES` then has 4096 of them

LEAST_NBYTES = 16 << 10
"""A smaller frame counts as this many bytes: it bounds the frames of one message."""


def cuts(sizes: Iterable[int], limit: int) -> list[int]:
    """Where to cut blocks of these `sizes` into parts of at most `limit` bytes, with at least one block each."""
    bounds, nbytes, count = [0], 0, 0
    for number, size in enumerate(sizes):
        if nbytes and nbytes + size > limit:
            bounds.append(number)
            nbytes = 0
        nbytes += size
        count = number + 1
    return [*bounds, count]


def part_nbytes(total: int, least: int) -> int:
    """The size of one part of an answer of `total` bytes: at least `least`, more if its parts would not fit a queue."""
    return max(least, min(total // _MOST_PARTS, _MOST_NBYTES))


def push_cuts(frames: Sequence[BlockFrame], limit: int) -> list[int]:
    """Where to cut the blocks for one server into pushes. Blocks count with their decoded size."""
    least = limit // _PUSH_FRAMES
    return cuts((max(least, frame.nbytes) for frame in frames), limit)


@dataclass(slots=True)
class _Arriving:
    version: int
    parts: set[int] = field(default_factory=set)


class Arrivals:
    """Which parts of the awaited answers have come, by server."""

    def __init__(self) -> None:
        self._arriving: dict[NodeId, _Arriving] = {}

    def clear(self) -> None:
        """Forget all answers: none is awaited."""
        self._arriving.clear()

    def is_outdated(self, sender: NodeId, reply: PullReply) -> bool:
        """Whether parts of a newer version have come (the pull was repeated): this reply must not be used then."""
        known = self._arriving.get(sender)
        return known is not None and reply.version < known.version

    def complete(self, sender: NodeId, reply: PullReply) -> bool:
        """Note `reply`; whether all parts of its version have come."""
        if reply.parts > 1:
            known = self._arriving.get(sender)
            if known is None or known.version != reply.version:
                known = self._arriving[sender] = _Arriving(reply.version)
            known.parts.add(reply.part)
            if len(known.parts) < reply.parts:
                return False
        self._arriving.pop(sender, None)
        return True
