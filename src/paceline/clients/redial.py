"""Keeps the session with the coordinator, which may restart at another address."""

from __future__ import annotations

from collections.abc import Callable

from paceline.transport.base import Event, PeerDown, PeerUp, Port
from paceline.types import COORDINATOR, NodeId, name_of

_LOOK_S = 0.2

Find = Callable[[], str | None]
"""Returns the address that the coordinator announced last; None if it has not announced one."""


def is_coordinator(peer: NodeId) -> bool:
    """Whether a peer is a coordinator. It may be another role that now listens at the address of a dead coordinator."""
    return name_of(peer) == COORDINATOR


class Redial:
    """The session of one port with the coordinator. `peer` is the coordinator's node id during a session.

    `refused` says that the process at the address and this one refuse each other, and why; None if they do not.

    The owner of the port passes every event to `note`, and calls `tick` a few times a second. Without a session, `tick`
    connects to the address that the coordinator announced last.
    """

    def __init__(self, port: Port, find: Find) -> None:
        self.peer: NodeId | None = None
        self.refused: PeerDown | None = None
        self._port = port
        self._find = find
        self._address: str | None = None
        self._next = 0.0

    def note(self, event: Event | None) -> None:
        """Take note of an event of the port, before its owner handles it."""
        match event:
            case PeerUp(peer=peer, address=address) if address is not None and is_coordinator(peer):
                self.peer, self.refused = peer, None
            case PeerDown(peer=peer) if peer == self.peer:
                self.peer = None
            case PeerDown(peer=peer, refused=rule) if rule and peer == self._address:
                self.refused = event

    def tick(self, now: float) -> None:
        """If there is no session, connect to the address that the coordinator announced last, unless already tried."""
        if self.peer is not None or now < self._next:
            return
        self._next = now + _LOOK_S
        address = self._find()
        if address is None or address == self._address:
            return
        if self._address is not None:
            self._port.disconnect(self._address)
        self._address, self.refused = address, None
        self._port.connect(address)
