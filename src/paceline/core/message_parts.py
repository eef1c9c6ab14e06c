"""Cut large answers, sums and pushes into parts, and tell when a reader has all parts of one version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline.messages import BlockFrame, PullReply
from paceline.types import NodeId

PART_NBYTES = 16 << 20
"""The size of one part in bytes: the reader copies a part into the model while the next part is on its way."""

PUSH_NBYTES = 256 << 20
"""The largest size of one push in bytes, far below the limit of a message. A push can be large, because most blocks
were sent before, during the backward pass."""

_PUSH_FRAMES = 4096  # a message may have at most this many frames
_MOST_PARTS = 512  # parts of one answer at most: fewer than the messages that a queue may hold
_MOST_NBYTES = 64 << 20  # bytes of one part at most: with frames of `LEAST_NBYTES`, a part then has 4096 frames

LEAST_NBYTES = 16 << 10
"""A smaller frame counts as this many bytes, which limits the number of frames in one message."""


def cuts(sizes: Iterable[int], limit: int) -> list[int]:
    """Where to cut blocks of these `sizes` into parts of at most `limit` bytes; each part has at least one block."""
    bounds, nbytes, count = [0], 0, 0
    for number, size in enumerate(sizes):
        if nbytes and nbytes + size > limit:
            bounds.append(number)
            nbytes = 0
        nbytes += size
        count = number + 1
    return [*bounds, count]


def part_nbytes(total: int, least: int) -> int:
    """The size of one part of an answer of `total` bytes: `least`, or more if a queue could not hold so many parts."""
    return max(least, min(total // _MOST_PARTS, _MOST_NBYTES))


def push_cuts(frames: Sequence[BlockFrame], limit: int) -> list[int]:
    """Where to cut the blocks for one server into pushes of at most `limit` bytes, counted after decoding."""
    least = limit // _PUSH_FRAMES
    return cuts((max(least, frame.nbytes) for frame in frames), limit)


@dataclass(slots=True)
class _Arriving:
    version: int
    parts: set[int] = field(default_factory=set)


class Arrivals:
    """Which parts of the expected answers have come, for each server."""

    def __init__(self) -> None:
        self._arriving: dict[NodeId, _Arriving] = {}

    def clear(self) -> None:
        """Forget all parts that have come: no answer is expected any more."""
        self._arriving.clear()

    def is_outdated(self, sender: NodeId, reply: PullReply) -> bool:
        """Whether parts of a newer version than that of `reply` have come, because the pull was repeated.

        An outdated reply must not be used.
        """
        known = self._arriving.get(sender)
        return known is not None and reply.version < known.version

    def complete(self, sender: NodeId, reply: PullReply) -> bool:
        """Note that `reply` has come; True if now all parts of its version have come."""
        if reply.parts > 1:
            known = self._arriving.get(sender)
            if known is None or known.version != reply.version:
                known = self._arriving[sender] = _Arriving(reply.version)
            known.parts.add(reply.part)
            if len(known.parts) < reply.parts:
                return False
        self._arriving.pop(sender, None)
        return True
