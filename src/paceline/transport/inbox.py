"""The one gate between a lane and a role: whatever arrives from a proven peer passes here, in every lane."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import RefusedFrameError
from paceline.messages import Message, Prepare, Pull, PullReply, Push, Refused
from paceline.transport.base import Counters, Frame, Received
from paceline.types import NodeId
from paceline.wire.codec import decode
from paceline.wire.frames import WireLimits, check_message

_DETAIL_CHARS = 200


def open_header(header: bytes | memoryview, limits: WireLimits, counters: Counters) -> Message | None:
    """The message in `header`; None, counted, when it is refused."""
    try:
        return decode(header, max_nbytes=limits.max_header_nbytes)
    except RefusedFrameError as error:
        counters.refuse(error.rule)
        return None


def admit(
    peer: NodeId, message: Message, frames: Sequence[Frame], limits: WireLimits, counters: Counters
) -> Received | Refused | None:
    """Check `message` against its frames: an event for the role, an answer for the peer, or None.

    A request that fails is answered with `Refused`, and of a reply that fails the role is told `Refused` in
    its place: either way the asker's wait ends by name instead of at a deadline.
    """
    try:
        check_message(message, frames, limits)
    except RefusedFrameError as error:
        counters.refuse(error.rule)
        detail = error.detail[:_DETAIL_CHARS]
        if isinstance(message, (Push, Pull, Prepare)):
            return Refused(message.req, error.rule, detail)
        if isinstance(message, PullReply):
            return Received(peer, Refused(message.req, error.rule, detail))
        return None
    counters.received_messages += 1
    for frame in frames:
        counters.received_bytes += frame.nbytes
    return Received(peer, message, frames)
