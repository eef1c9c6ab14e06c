"""Sessions between servers: each pair that needs one has one, whoever of the two made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.transport.base import Event, PeerDown, PeerUp, Port
from paceline.types import NodeId

_GRACE_S = 0.3
"""How long one waits for the other side to connect before doing it oneself."""


@dataclass(slots=True)
class _Link:
    """One peer. `since` is when there was last a session; `dialled` says that this side tries to have one.

    `theirs` says that the session was made by the other side.
    """

    address: str
    since: float
    needed: bool = True
    up: bool = False
    dialled: bool = False
    theirs: bool = False


class Links:
    """Keeps sessions of one port with the peers that its owner needs.

    A port has one session with each peer, and a newer one replaces an older one. So that two servers which need each
    other do not replace each other's for ever, the first of the two by name connects, and the other one only if
    nothing comes of it: the first may not need it, or not know that yet. A session that nobody needs any longer is
    left alone; it is not made again.

    The owner hands every event of the port to `note`, and calls `tick` a few times a second.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._links: dict[NodeId, _Link] = {}
        self._up: dict[NodeId, bool] = {}

    def need(self, addresses: Mapping[NodeId, str], now: float) -> None:
        """From now on these are the peers to reach, and where they listen."""
        for peer, link in self._links.items():
            link.needed = addresses.get(peer) == link.address
        for peer, address in addresses.items():
            if peer not in self._links:
                self._links[peer] = _Link(address, now, up=peer in self._up, theirs=self._up.get(peer, False))
        self.tick(now)

    def note(self, event: Event | None, now: float) -> None:
        """An event of the port."""
        match event:
            case PeerUp(peer=peer, address=address):
                self._up[peer] = address is None
                link = self._links.get(peer)
                if link is not None:
                    link.up, link.theirs = True, address is None
            case PeerDown(peer=peer):
                self.lost(peer, now)

    def lost(self, peer: NodeId, now: float) -> None:
        """There is no session with `peer`."""
        self._up.pop(peer, None)
        link = self._links.get(peer)
        if link is not None and link.up:
            link.up, link.since = False, now

    def tick(self, now: float) -> None:
        """Time passes; all events of the port were noted."""
        for peer, link in list(self._links.items()):
            if link.up:
                if link.theirs and link.dialled:
                    link.dialled = False
                    self._port.disconnect(link.address)  # the other side was faster
            elif not link.needed:
                del self._links[peer]
                if link.dialled:
                    self._port.disconnect(link.address)
            elif link.dialled or self._port.node < peer or now - link.since >= _GRACE_S:
                link.dialled = True
                self._port.connect(link.address)  # does nothing while it is being tried
