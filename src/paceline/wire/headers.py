"""The header of a message: msgpack bytes. Decoding checks every field against its type and runs no code."""

from __future__ import annotations

import msgspec

from paceline.errors import RefusedFrameError
from paceline.messages import AnyMessage, Message

MAX_HEADER_NBYTES = 16 << 20
"""The largest header that is decoded, unless the caller sets a lower limit."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)


def encode_header(message: Message) -> bytes:
    """The header of `message`; its frames travel beside it."""
    return _ENCODER.encode(message)


def decode_header(header: bytes | memoryview, *, max_nbytes: int = MAX_HEADER_NBYTES) -> Message:
    """The message in `header`: one of `AnyMessage`, every field of its declared type.

    Raises:
        RefusedFrameError: rule ``header-size`` for a header larger than `max_nbytes`, ``header`` for bytes that are
            not exactly one known message. No other exception leaves this function, whatever the bytes are.
    """
    if len(header) > max_nbytes:
        raise RefusedFrameError("header-size", f"{len(header)} bytes, at most {max_nbytes} are read")
    try:
        return _DECODER.decode(header)
    # Besides its own errors msgspec lets through RecursionError (deep nesting in a field that it skips) and the
    # errors of building a str or an int.
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise RefusedFrameError("header", str(error)) from None
