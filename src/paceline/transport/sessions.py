"""Which proven peers a ZeroMQ port has, and the events its role has not yet seen."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import zmq

from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Message
from paceline.transport.admission import admit, check_outgoing, encode_checked, open_header
from paceline.transport.base import Counters, Delivery, Event, Frame, PeerDown, PeerUp, Received
from paceline.transport.limits import LinkLimits
from paceline.transport.zmq.parts import frame_views
from paceline.types import NodeId


class Link(Protocol):
    """One proven connection, of either direction."""

    def send(self, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Queue one message; raises `zmq.ZMQError` when it cannot be."""
        ...

    def end(self, rule: str, detail: str) -> None:
        """Close the connection, telling the peer why if it still listens. Emits nothing."""
        ...


class Sessions:
    """Proven peers by node id. A newer connection that proves the same id replaces the older one."""

    def __init__(self, node: NodeId, token: bytes, limits: LinkLimits) -> None:
        self.node = node
        self.token = token
        self.limits = limits
        self.counters = Counters()
        self.events: deque[Event] = deque()
        self._links: dict[NodeId, Link] = {}

    def up(self, peer: NodeId, link: Link, address: str | None) -> None:
        """`peer` has been proven on `link`."""
        older = self._links.get(peer)
        if older is not None:
            self.down(peer, older, "replaced by a newer connection")
            older.end("replaced", "a newer connection proved the same node id")
        self._links[peer] = link
        self.events.append(PeerUp(peer, address))

    def down(self, peer: NodeId, link: Link, reason: str) -> None:
        """`link` is over; ignored unless it is the one in use."""
        if self._links.get(peer) is link:
            del self._links[peer]
            self.events.append(PeerDown(peer, reason))

    def forget(self, peer: NodeId) -> Link | None:
        """Take `peer` out without an event; those that wait are dropped."""
        for event in [event for event in self.events if event.peer == peer]:
            self.events.remove(event)
        return self._links.pop(peer, None)

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame]) -> Delivery:
        """As `Port.send`."""
        link = self._links.get(peer)
        if link is None:
            raise PeerUnknownError(f"{self.node} has no session with {peer}")
        header = encode_checked(message, self.limits.wire)
        if frames:
            check_outgoing(frames, self.limits.wire)
        try:
            delivery = link.send(header, frames)
        except zmq.ZMQError as error:
            full = isinstance(error, zmq.Again)
            reason = "its queue is full" if full else f"not reachable ({error})"
            self.down(peer, link, reason)
            link.end("queue-full" if full else "unreachable", reason)
            raise PeerLostError(peer, reason) from None
        counters = self.counters
        counters.sent_messages += 1
        for frame in frames:
            counters.sent_bytes += frame.nbytes
        return delivery

    def arrived(self, peer: NodeId, parts: Sequence[zmq.Frame], overflow: bool) -> None:
        """A proven peer sent something that is not a control frame: header first, then frames."""
        limits, counters = self.limits.wire, self.counters
        if overflow:
            counters.refuse("frame-count")
            return
        message = open_header(parts[0].buffer, limits, counters)
        if message is not None:
            self.received(peer, message, frame_views(parts[1:]))

    def received(self, peer: NodeId, message: Message, frames: Sequence[Frame]) -> None:
        """A proven peer sent `message` with these frames, in whatever lane."""
        admitted = admit(peer, message, frames, self.limits.wire, self.counters)
        if isinstance(admitted, Received):
            self.events.append(admitted)
        elif admitted is not None:
            # A session that is over, or ends here, has been reported by `down`.
            with contextlib.suppress(PeerLostError, PeerUnknownError):
                self.send(peer, admitted, ())
