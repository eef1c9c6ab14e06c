"""What every conversation is made of."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""


class Ok(Message, frozen=True):
    """Done; nothing else to say."""

    req: int


class Refused(Message, frozen=True):
    """A request that breaks a rule, by the rule's name."""

    req: int
    rule: str
    detail: str
