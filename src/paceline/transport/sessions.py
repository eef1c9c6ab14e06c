"""The sessions of one port with its proven peers, and the events that wait for the port's role."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Message
from paceline.transport.admission import admit, check_outgoing, encode_checked
from paceline.transport.base import Counters, Delivery, Event, Frame, PeerDown, PeerUp, Received
from paceline.transport.limits import LinkLimits
from paceline.types import NodeId


class NotSentError(Exception):
    """A link cannot send a message; `rule` is ``queue-full`` or ``unreachable``. `Sessions.send` ends the session."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule
        self.reason = reason

    @classmethod
    def queue_full(cls) -> NotSentError:
        """The error for a peer whose queue has reached its limit of messages or bytes."""
        return cls("queue-full", "its queue is full")


class Link(Protocol):
    """One connection to a proven peer, no matter which side connected."""

    def send(self, header: bytes, frames: Sequence[Frame], later: bool = False) -> Delivery:
        """Queue one message; with `later` it may wait some milliseconds for the next one.

        Raises:
            NotSentError: the queue is full, or the connection has closed; nothing was sent.
        """
        ...

    def end(self, rule: str, detail: str) -> None:
        """Close the connection, and tell the peer why if it can still be told. The role gets no event."""
        ...


class Sessions:
    """Proven peers by node id. A newer connection that proves the same id replaces the older one."""

    def __init__(self, node: NodeId, token: bytes, limits: LinkLimits) -> None:
        self.node = node
        self.token = token
        self.limits = limits
        self.counters = Counters()
        self.events: deque[Event] = deque()
        self.take_event = self.events.popleft
        """Remove and return the next event for the role. Raises IndexError if no event waits."""
        self._links: dict[NodeId, Link] = {}

    def report(self, event: Event) -> None:
        """Queue an event for the role."""
        self.events.append(event)

    def drop_events(self) -> None:
        """Drop all events that wait, because the port closes."""
        self.events.clear()

    def up(self, peer: NodeId, link: Link, address: str | None) -> None:
        """Begin a session with `peer`, which proved its node id on `link`; end an older one first. Reports `PeerUp`."""
        older = self._links.get(peer)
        if older is not None:
            self.down(peer, older, "replaced by a newer connection")
            older.end("replaced", "a newer connection proved the same node id")
        self._links[peer] = link
        self.events.append(PeerUp(peer, address))

    def down(self, peer: NodeId, link: Link, reason: str) -> None:
        """End the session of `peer`, because `link` has ended, and report `PeerDown`.

        Does nothing if the session uses another link by now.
        """
        if self._links.get(peer) is link:
            del self._links[peer]
            self.events.append(PeerDown(peer, reason))

    def forget(self, peer: NodeId) -> Link | None:
        """End the session of `peer` without an event, drop its waiting events, and return its link, if it had one."""
        for event in [event for event in self.events if event.peer == peer]:
            self.events.remove(event)
        return self._links.pop(peer, None)

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame], later: bool = False) -> Delivery:
        """See `Port.send`."""
        link = self._links.get(peer)
        if link is None:
            raise PeerUnknownError(f"{self.node} has no session with {peer}")
        limits = self.limits.wire
        header = encode_checked(message, limits)
        if frames:
            check_outgoing(frames, limits)
        try:
            delivery = link.send(header, frames, later)
        except NotSentError as error:
            self.down(peer, link, error.reason)
            link.end(error.rule, error.reason)
            raise PeerLostError(peer, error.reason) from None
        self.counters.sent(frames)
        return delivery

    def received(self, peer: NodeId, message: Message, frames: Sequence[Frame]) -> None:
        """Check a message from a proven peer, then queue it for the role, or answer the peer that it is refused."""
        admitted = admit(peer, message, frames, self.limits.wire, self.counters)
        if isinstance(admitted, Received):
            self.events.append(admitted)
        elif admitted is not None:
            # If the session has ended, or this answer ends it, `down` reports that.
            with contextlib.suppress(PeerLostError, PeerUnknownError):
                self.send(peer, admitted, ())
