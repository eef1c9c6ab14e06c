"""The base of all messages, and the two replies that every request may get."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages. The class name, or its `tag`, is part of the encoding."""


class Ok(Message, frozen=True):
    """The reply to a request that was carried out and has no result."""

    req: int


class Refused(Message, frozen=True):
    """The reply to a request that was not carried out, because it breaks `rule`."""

    req: int
    rule: str
    detail: str
