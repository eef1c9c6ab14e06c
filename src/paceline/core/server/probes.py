"""A server tries to reach others that it could not, since the coordinator asks it to."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.messages import Hail, Reachable, Try
from paceline.types import COORDINATOR, NodeId

_LASTS_S = 3.0  # the coordinator asks again as long as it wants to know


class Probing:
    """Peers to be tried; the first answer is told."""

    def __init__(self) -> None:
        self._tried: dict[NodeId, tuple[str, float]] = {}

    def begin(self, message: Try, now: float) -> list[Send]:
        """Try that one for a while, beginning now."""
        self.tick(now)
        self._tried[message.peer] = message.address, now + _LASTS_S
        return [Send(message.peer, Hail())]

    def tick(self, now: float) -> None:
        """Whom nobody asks for any more is not tried any longer."""
        if self._tried:
            self._tried = {peer: tried for peer, tried in self._tried.items() if tried[1] > now}

    def greet(self, peer: NodeId) -> list[Send]:
        """The session with `peer` came up."""
        return [Send(peer, Hail())] if peer in self._tried else []

    def answered(self, peer: NodeId) -> list[Send]:
        """`peer` has answered."""
        return [Send(COORDINATOR, Reachable(peer))] if self._tried.pop(peer, None) is not None else []

    @property
    def peers(self) -> dict[NodeId, str]:
        """Who is to be reached, and where they listen."""
        return {peer: address for peer, (address, _) in self._tried.items()}
