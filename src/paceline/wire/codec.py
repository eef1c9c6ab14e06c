"""Messages as msgpack bytes: decoding checks every field against its type, and never runs anything."""

from __future__ import annotations

import msgspec

from paceline.errors import RefusedFrameError
from paceline.messages import AnyMessage, Message

MAX_HEADER_NBYTES = 16 << 20
"""The largest message header that is decoded, unless a caller asks for less."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """The header of `message`; its raw frames travel beside it."""
    return _ENCODER.encode(message)


def decode(header: bytes | memoryview, *, max_nbytes: int = MAX_HEADER_NBYTES) -> Message:
    """The message in `header`: one of `AnyMessage`, every field of its declared type.

    Raises:
        RefusedFrameError: rule ``header-size`` when it is larger than `max_nbytes`, ``header`` for anything
            that is not exactly one known message. No other exception leaves this function, whatever the bytes
            are.
    """
    if len(header) > max_nbytes:
        raise RefusedFrameError("header-size", f"{len(header)} bytes, at most {max_nbytes} are read")
    try:
        return _DECODER.decode(header)
    # Besides its own errors msgspec lets through RecursionError (deep nesting in a field that is skipped) and
    # what building a str or an int may raise.
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise RefusedFrameError("header", str(error)) from None
