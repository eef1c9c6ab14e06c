"""Probes: this server tries whether it can reach another one, for the coordinator or, in a group, for itself."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.core.server.group_reach import GroupReach
from paceline.messages import Echo, Probe, Reachable
from paceline.types import COORDINATOR, NodeId

_LASTS_S = 3.0  # a probe ends after this time; the coordinator renews it as long as it needs the answer


class Probes:
    """The servers that this server tries to reach. The first answer of each is reported to the coordinator.

    `group` are the members that it asks for itself.
    """

    def __init__(self, group: GroupReach) -> None:
        self._group = group
        self._probes: dict[NodeId, tuple[str, float]] = {}

    def begin(self, message: Probe, now: float) -> list[Send]:
        """Begin or renew the probe of a server: send `Echo` to it."""
        self.tick(now)
        self._probes[message.peer] = message.address, now + _LASTS_S
        return [Send(message.peer, Echo())]

    def tick(self, now: float) -> None:
        """Drop probes that were not renewed."""
        if self._probes:
            self._probes = {peer: probe for peer, probe in self._probes.items() if probe[1] > now}

    def greet(self, peer: NodeId) -> list[Send]:
        """Send `Echo` again if `peer` is probed: the session with it is up."""
        return [Send(peer, Echo())] if peer in self._probes else self._group.greet(peer)

    def answered(self, peer: NodeId) -> list[Send]:
        """Report once that `peer` has answered its probe."""
        probed = self._probes.pop(peer, None) is not None
        return self._group.answered(peer) or ([Send(COORDINATOR, Reachable(peer))] if probed else [])

    @property
    def peers(self) -> dict[NodeId, str]:
        """The addresses of the servers that are probed."""
        return {**self._group.peers, **{peer: address for peer, (address, _) in self._probes.items()}}
