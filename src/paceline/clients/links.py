"""The sessions between servers: two servers that need a session have exactly one, whichever of them made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.transport.base import Event, PeerDown, PeerUp, Port
from paceline.types import NodeId

_GRACE_S = 0.3
"""Seconds that a server waits for the other server to connect before it connects itself."""


@dataclass(slots=True)
class _Link:
    """The session with one peer. `since` is when the last session ended; `dialled` says that this side connects.

    `theirs` says that the other side made the session.
    """

    address: str
    since: float
    needed: bool = True
    up: bool = False
    dialled: bool = False
    theirs: bool = False


class Links:
    """Keeps sessions of one port with the peers that its owner needs.

    A port has one session with each peer, and a newer session replaces an older one. Two servers that need each other
    must not replace each other's sessions for ever. So the server with the lower node id connects at once. The other
    server connects only if it still has no session after a short wait: the first may not need one, or not know it yet.
    A session that is not needed any more is kept, but not made again after it ends.

    The owner passes every event of the port to `note`, and calls `tick` a few times a second.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._links: dict[NodeId, _Link] = {}
        self._up: dict[NodeId, bool] = {}

    def need(self, addresses: Mapping[NodeId, str], now: float) -> None:
        """Set the peers that the owner needs from now on, with their addresses."""
        for peer, link in self._links.items():
            link.needed = addresses.get(peer) == link.address
        for peer, address in addresses.items():
            if peer not in self._links:
                self._links[peer] = _Link(address, now, up=peer in self._up, theirs=self._up.get(peer, False))
        self.tick(now)

    def note(self, event: Event | None, now: float) -> None:
        """Take note of an event of the port."""
        match event:
            case PeerUp(peer=peer, address=address):
                self._up[peer] = address is None
                link = self._links.get(peer)
                if link is not None:
                    link.up, link.theirs = True, address is None
            case PeerDown(peer=peer):
                self.lost(peer, now)

    def lost(self, peer: NodeId, now: float) -> None:
        """Take note that the session with `peer` has ended."""
        self._up.pop(peer, None)
        link = self._links.get(peer)
        if link is not None and link.up:
            link.up, link.since = False, now

    def tick(self, now: float) -> None:
        """Connect and disconnect as needed. Call it after `note` has got all events of the port so far."""
        for peer, link in list(self._links.items()):
            if link.up:
                if link.theirs and link.dialled:
                    link.dialled = False
                    self._port.disconnect(link.address)  # the other side has connected: one session is enough
            elif not link.needed:
                del self._links[peer]
                if link.dialled:
                    self._port.disconnect(link.address)
            elif link.dialled or self._port.node < peer or now - link.since >= _GRACE_S:
                link.dialled = True
                self._port.connect(link.address)  # does nothing while an attempt is under way
