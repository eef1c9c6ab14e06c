"""The checks of every message that a port sends or receives, the same for all lanes. Decodes received frames."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import RefusedFrameError
from paceline.messages import AskSlot, Message, Prepare, Pull, PullReply, Push, Refused, SlotPrepared
from paceline.transport.base import Counters, Frame, Received
from paceline.types import NodeId
from paceline.wire.codecs import decode_frames
from paceline.wire.frames import WireLimits, check_message, message_blocks
from paceline.wire.headers import decode_header, encode_header

_DETAIL_CHARS = 200


def check_outgoing(frames: Sequence[Frame], limits: WireLimits) -> None:
    """Refuse frames that exceed the limits or are not contiguous, before any of them is sent.

    Raises:
        RefusedFrameError: rule ``frame-count``, ``frame-cap``, ``message-cap``, or ``contiguous``.
    """
    if len(frames) > limits.max_frames:
        raise RefusedFrameError("frame-count", f"{len(frames)} frames, at most {limits.max_frames}")
    total = 0
    for frame in frames:
        if frame.nbytes > limits.max_frame_nbytes:
            raise RefusedFrameError("frame-cap", f"{frame.nbytes} bytes, at most {limits.max_frame_nbytes}")
        if not frame.c_contiguous:
            raise RefusedFrameError(
                "contiguous", "a frame must be contiguous, and this view has gaps: send a contiguous copy"
            )
        total += frame.nbytes
    if total > limits.max_message_nbytes:
        raise RefusedFrameError("message-cap", f"{total} bytes, at most {limits.max_message_nbytes}")


def encode_checked(message: Message, limits: WireLimits) -> bytes:
    """Encode the header of `message`.

    Raises:
        RefusedFrameError: rule ``header-size``: the header is larger than the limit.
    """
    header = encode_header(message)
    if len(header) > limits.max_header_nbytes:
        raise RefusedFrameError("header-size", f"{len(header)} bytes, at most {limits.max_header_nbytes}")
    return header


def open_header(header: bytes | memoryview, limits: WireLimits, counters: Counters) -> Message | None:
    """Decode the message in `header`. Returns None, and counts the refusal, if the header breaks a rule."""
    try:
        return decode_header(header, max_nbytes=limits.max_header_nbytes)
    except RefusedFrameError as error:
        counters.refuse(error.rule)
        return None


def admit(
    peer: NodeId, message: Message, frames: Sequence[Frame], limits: WireLimits, counters: Counters
) -> Received | Refused | None:
    """Check `message` against its frames and decode the frames.

    Returns the event for the role if all checks pass. If a request fails a check, returns the `Refused` to send to the
    peer; if a reply fails, returns an event with `Refused` in place of the reply. Either way the side that asked learns
    the broken rule at once. Returns None for any other message that fails.
    """
    try:
        check_message(message, frames, limits)
        decoded = decode_frames(message_blocks(message), frames) if frames else frames
    except RefusedFrameError as error:
        counters.refuse(error.rule)
        detail = error.detail[:_DETAIL_CHARS]
        if isinstance(message, (Push, Pull, Prepare, AskSlot)):
            return Refused(message.req, error.rule, detail)
        if isinstance(message, (PullReply, SlotPrepared)):
            return Received(peer, Refused(message.req, error.rule, detail))
        return None
    counters.received(frames)
    return Received(peer, message, decoded)
