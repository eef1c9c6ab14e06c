"""Requests that peers repeat until they are answered: each is carried out once, and gets the same answer again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.core.coordinator.events import MemberRemoved, Output
from paceline.core.effects import Effect, History, Send
from paceline.messages import Message, Position
from paceline.types import NodeId


@dataclass(slots=True)
class _Request:
    req: int
    reply: Send | None = None
    forgotten: bool = False


class Requests:
    """Rule 10: every request ends in a reply. The newest request of each kind from each peer, and its answer.

    A peer has one of a kind under way at a time. Entries outlive the peer's eviction: a request that it repeats when
    it wakes up is still recognised.
    """

    def __init__(self) -> None:
        self._known: dict[NodeId, dict[type[Message], _Request]] = {}

    def restore(self, history: History) -> list[Output]:
        """No request is known; peers repeat those that were not answered."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Requests that wait for an answer count as new when they are repeated."""
        for peer in self._known:
            self._forget_waiting(peer)
        return []

    def note(self, sender: NodeId, message: Message, req: int) -> bool:
        """Note a request; False if it, or a later one of its kind, came before."""
        kinds = self._known.setdefault(sender, {})
        known = kinds.get(type(message))
        if known is not None and req == known.req and known.forgotten:
            known.forgotten = False
            return True
        if known is not None and req <= known.req:
            return False
        kinds[type(message)] = _Request(req)
        return True

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

    def member_removed(self, event: MemberRemoved) -> list[Output]:
        """What waits for an answer to this peer is dropped: a request that it repeats counts as new."""
        self._forget_waiting(event.member.node)
        return []

    def _forget_waiting(self, peer: NodeId) -> None:
        for known in self._known.get(peer, {}).values():
            known.forgotten |= known.reply is None
