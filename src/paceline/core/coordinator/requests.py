"""Requests that peers repeat until they are answered: each is carried out once, and answered the same again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.core.effects import Effect, Send
from paceline.messages import Message
from paceline.types import NodeId


@dataclass(slots=True)
class _Request:
    req: int
    reply: Send | None = None
    forgotten: bool = False


class RequestBook:
    """The newest request of each kind from each peer, and its answer. A peer has one of a kind under way at a time.

    Entries outlive the peer's eviction: what it repeats when it wakes up is still recognised.
    """

    def __init__(self) -> None:
        self._known: dict[NodeId, dict[type[Message], _Request]] = {}

    def seen(self, sender: NodeId, message: Message, req: int) -> bool:
        """Whether this request, or a later one of its kind, came before; notes it if not."""
        kinds = self._known.setdefault(sender, {})
        known = kinds.get(type(message))
        if known is not None and req == known.req and known.forgotten:
            known.forgotten = False
            return False
        if known is not None and req <= known.req:
            return True
        kinds[type(message)] = _Request(req)
        return False

    def reply(self, sender: NodeId, message: Message, req: int) -> Send | None:
        """The answer that a repeated request got; None while it waits for one, or when it is outdated."""
        known = self._known.get(sender, {}).get(type(message))
        return known.reply if known is not None and known.req == req else None

    def answered(self, effects: Iterable[Effect]) -> None:
        """Remember the answers among `effects`."""
        for effect in effects:
            if isinstance(effect, Send):
                req = getattr(effect.message, "req", None)
                if req is not None:
                    for known in self._known.get(effect.to, {}).values():
                        if known.req == req:
                            known.reply = effect

    def forget_waiting(self, peer: NodeId) -> None:
        """Nothing is waiting for `peer` any more (it is lost, or the job went back): what it repeats counts as new."""
        for known in self._known.get(peer, {}).values():
            known.forgotten |= known.reply is None

    def forget_all_waiting(self) -> None:
        """The same for everyone."""
        for peer in self._known:
            self.forget_waiting(peer)
