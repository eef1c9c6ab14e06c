"""Probes: the coordinator asks this server to try whether it reaches another one."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.messages import Echo, Probe, Reachable
from paceline.types import COORDINATOR, NodeId

_LASTS_S = 3.0  # the coordinator renews a probe as long as it needs the answer


class Probes:
    """Servers to be reached; the first answer of each is reported."""

    def __init__(self) -> None:
        self._probes: dict[NodeId, tuple[str, float]] = {}

    def begin(self, message: Probe, now: float) -> list[Send]:
        """Probe a server for a while, beginning now."""
        self.tick(now)
        self._probes[message.peer] = message.address, now + _LASTS_S
        return [Send(message.peer, Echo())]

    def tick(self, now: float) -> None:
        """Drop probes that were not renewed."""
        if self._probes:
            self._probes = {peer: probe for peer, probe in self._probes.items() if probe[1] > now}

    def greet(self, peer: NodeId) -> list[Send]:
        """The session with `peer` is up."""
        return [Send(peer, Echo())] if peer in self._probes else []

    def answered(self, peer: NodeId) -> list[Send]:
        """`peer` has answered: report it once."""
        return [Send(COORDINATOR, Reachable(peer))] if self._probes.pop(peer, None) is not None else []

    @property
    def peers(self) -> dict[NodeId, str]:
        """The servers to be reached, and where they listen."""
        return {peer: address for peer, (address, _) in self._probes.items()}
