"""The base of all messages, and the two replies that every request may get."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages. The class name, or its `tag`, is part of the encoding."""


class Ok(Message, frozen=True):
    """The request was carried out; it has no other answer."""

    req: int


class Refused(Message, frozen=True):
    """The request was not carried out: it breaks `rule`."""

    req: int
    rule: str
    detail: str
