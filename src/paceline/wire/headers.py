"""The header of a message: the message as msgpack bytes. Decoding checks the type of every field and runs no code."""

from __future__ import annotations

import msgspec

from paceline.errors import RefusedFrameError
from paceline.messages import AnyMessage, Message

MAX_HEADER_NBYTES = 16 << 20
"""The largest header that is decoded, unless the caller sets a lower limit."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)


def encode_header(message: Message) -> bytes:
    """Encode the header of `message`. The frames of a message are not part of the header."""
    return _ENCODER.encode(message)


def decode_header(header: bytes | memoryview, *, max_nbytes: int = MAX_HEADER_NBYTES) -> Message:
    """Decode the message in `header`: one of `AnyMessage`, with every field of its declared type.

    Raises:
        RefusedFrameError: rule ``header-size`` for a header larger than `max_nbytes`, ``header`` for bytes that are
            not exactly one known message. No other exception leaves this function, whatever the bytes are.
    """
    if len(header) > max_nbytes:
        raise RefusedFrameError("header-size", f"the header has {len(header)} bytes, at most {max_nbytes} are allowed")
    try:
        return _DECODER.decode(header)
    # Besides its own errors, msgspec may raise RecursionError (deep nesting in a field that it skips) and the errors of
    # building a str or an int.
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise RefusedFrameError("header", str(error)) from None
