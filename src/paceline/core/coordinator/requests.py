"""Requests that peers repeat until they are answered: each is carried out once, and gets the same answer again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paceline.core.coordinator.events import MembersRemoved, Output
from paceline.core.effects import Effect, History, Send
from paceline.messages import Message, Position
from paceline.types import NodeId


@dataclass(slots=True)
class _Request:
    req: int
    reply: Send | None = None
    forgotten: bool = False


_NONE: dict[type[Message], _Request] = {}


class Requests:
    """The newest request of each kind from each peer, and its answer. Rule 10: every request ends in a reply.

    A peer has at most one request of a kind under way. Entries outlive the eviction of the peer, so a request that the
    peer repeats afterwards is still recognised.
    """

    def __init__(self) -> None:
        self._known: dict[NodeId, dict[type[Message], _Request]] = {}
        self._newest: dict[NodeId, _Request] = {}

    def restore(self, history: History) -> list[Output]:
        """Do nothing: peers repeat the requests that were not answered."""
        return []

    def reset(self, position: Position | None) -> list[Output]:
        """Let requests without an answer count as new when they are repeated."""
        for peer in self._known:
            self._forget_waiting(peer)
        return []

    def note(self, sender: NodeId, message: Message, req: int) -> bool:
        """Note a request; False if this request, or a later one of its kind, came before."""
        kinds = self._known.get(sender)
        if kinds is None:
            kinds = self._known[sender] = {}
        known = kinds.get(type(message))
        if known is None:
            known = kinds[type(message)] = self._newest[sender] = _Request(req)
            return True
        if req > known.req:
            known.req, known.reply, known.forgotten = req, None, False
            self._newest[sender] = known
            return True
        if req == known.req and known.forgotten:
            known.forgotten = False
            return True
        return False

    def reply(self, sender: NodeId, message: Message, req: int) -> Send | None:
        """The answer to a repeated request; None if it has none yet, or if a newer request of its kind came."""
        known = self._known.get(sender, {}).get(type(message))
        return known.reply if known is not None and known.req == req else None

    def answered(self, effects: Iterable[Effect]) -> None:
        """Remember the answers among `effects`."""
        for effect in effects:
            if type(effect) is not Send or (req := getattr(effect.message, "req", None)) is None:
                continue
            newest = self._newest.get(effect.to)
            if newest is not None and newest.req == req:
                newest.reply = effect
                continue
            for known in self._known.get(effect.to, _NONE).values():
                if known.req == req:
                    known.reply = effect

    def members_removed(self, event: MembersRemoved) -> list[Output]:
        """Let requests of these peers without an answer count as new when they are repeated."""
        for member in event.members:
            self._forget_waiting(member.node)
        return []

    def _forget_waiting(self, peer: NodeId) -> None:
        for known in self._known.get(peer, {}).values():
            known.forgotten |= known.reply is None
