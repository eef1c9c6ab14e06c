"""The TCP connections of one listener, as the ZeroMQ monitor of its ROUTER socket reports them.

ZeroMQ names a connection by its file descriptor, and the system reuses the numbers of closed descriptors. So the table
of connections changes only by the monitor's events, in their order. ZeroMQ has no call that closes one connection:
`hang_up` shuts down its descriptor, after a check that the number still belongs to this connection.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket as sockets
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import zmq

from paceline.transport.base import Delivery, Frame
from paceline.transport.loop import Loop
from paceline.transport.sessions import Sessions
from paceline.transport.streams.link import StreamLink
from paceline.transport.zmq.outbox import Outbox
from paceline.transport.zmq.sockets import ZmqSocket, monitor_events
from paceline.types import NodeId
from paceline.wire.handshake import ServerHandshake

FAREWELL_S = 0.2
"""How many seconds a connection stays open after its farewell was sent, so that the peer can read the farewell."""

WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""The events that the monitor must report."""


class Carrier(Protocol):
    """The owner of connections, which sends on them and ends them. The listener is one."""

    def send(self, connection: Connection, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Queue one message for `connection`."""
        ...

    def end(self, connection: Connection, rule: str, detail: str) -> None:
        """Tell the peer why its connection ends (`rule` and `detail`), then close the connection."""
        ...


class Connection:
    """One accepted TCP connection. Once `peer` is set, it is also the `Link` of the session with that peer."""

    __slots__ = ("_carrier", "fd", "gone", "handshake", "hang_up_at", "link", "outbox", "peer", "route", "since")

    def __init__(self, carrier: Carrier, outbox: Outbox, fd: int, since: float) -> None:
        self._carrier = carrier
        self.outbox = outbox
        self.fd = fd
        self.since = since
        self.route: bytes | None = None
        self.handshake: ServerHandshake | None = None
        self.peer: NodeId | None = None
        self.link: StreamLink | None = None
        self.hang_up_at: float | None = None
        self.gone = False

    def begin(self, route: bytes, handshake: ServerHandshake) -> None:
        """Begin the handshake, because the first message has come. `route` is ZeroMQ's name of the connection."""
        self.route = route
        self.handshake = handshake

    def carry(self, peer: NodeId, link: StreamLink | None) -> None:
        """Set the peer that the handshake has proven. With `link`, the session uses it, otherwise this connection."""
        self.peer = peer
        self.link = link

    def hang_up_after(self, when: float) -> None:
        """Note that the connection is ending: its messages are not read any more, and it is closed at `when`."""
        self.hang_up_at = when

    def lost(self) -> None:
        """Note that the TCP connection has closed."""
        self.gone = True

    def send(self, header: bytes, frames: Sequence[Frame], later: bool = False) -> Delivery:
        """See `Link.send`."""
        if self.link is not None:
            return self.link.send(header, frames, later)
        return self._carrier.send(self, header, frames)

    def end(self, rule: str, detail: str) -> None:
        """See `Link.end`."""
        self._carrier.end(self, rule, detail)


class Connections:
    """All accepted connections. Closes those that are not proven in time, and those whose session has ended.

    Calls `on_closed` whenever a connection has closed: the owner then reads its last messages and calls `take_closed`.
    """

    def __init__(
        self,
        monitor: ZmqSocket,
        loop: Loop,
        sessions: Sessions,
        carrier: Carrier,
        on_closed: Callable[[], None],
    ) -> None:
        self.closed_since = 0.0
        """When the oldest of the connections that `take_closed` would return closed."""
        self._monitor = monitor
        self._loop = loop
        self._sessions = sessions
        self._carrier = carrier
        self._on_closed = on_closed
        self._open: dict[int, Connection] = {}
        self._unproven: dict[Connection, None] = {}
        self._ending: dict[Connection, None] = {}
        self._closed: list[Connection] = []

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open.values())

    def find_new(self, fd: int) -> Connection | None:
        """Find the connection on whose descriptor `fd` a first message came; None if that connection has closed.

        An earlier connection may have had the same number. The monitor reports a connection before any of its messages
        comes in, so after all events are handled, `fd` names the sender's connection or a later one.
        """
        self.take_events()
        connection = self._open.get(fd)
        return None if connection is None or connection.peer is not None or connection.gone else connection

    def proven(self, connection: Connection) -> None:
        """Note that `connection` was proven in time: it is not closed at the deadline of the handshake."""
        self._unproven.pop(connection, None)

    @property
    def any_closed(self) -> bool:
        """Whether connections have closed since the last `take_closed`."""
        return bool(self._closed)

    def take_closed(self) -> list[Connection]:
        """The connections that have closed since the last call."""
        closed, self._closed = self._closed, []
        return closed

    # ------------------------------------------------------------ events of the monitor

    def take_events(self) -> None:
        """Handle all events that the monitor has reported."""
        for event, value in monitor_events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._accept(value)
            elif event == zmq.EVENT_DISCONNECTED:
                connection = self._open.pop(value, None)
                if connection is not None:
                    self._lose(connection)
            else:
                self._sessions.counters.refuse("connection-handshake")

    def drop_surplus(self) -> None:
        """Close the oldest unproven connections, if there are more than the limit."""
        while len(self._unproven) > self._sessions.limits.max_unproven:
            self._sessions.counters.refuse("too-many-unproven")
            self.hang_up(next(iter(self._unproven)))

    def _accept(self, fd: int) -> None:
        stale = self._open.pop(fd, None)
        if stale is not None:
            self._lose(stale)
        limits = self._sessions.limits
        connection = Connection(self._carrier, Outbox(limits), fd, self._loop.now())
        self._open[fd] = connection
        self._unproven[connection] = None
        self._loop.wake_at(connection.since + limits.handshake_s)

    def _lose(self, connection: Connection) -> None:
        connection.lost()
        self._unproven.pop(connection, None)
        self._ending.pop(connection, None)
        if not self._closed:
            self.closed_since = self._loop.now()
        self._closed.append(connection)
        self._on_closed()

    # ------------------------------------------------------------ ends

    def end_soon(self, connection: Connection) -> None:
        """Close `connection` after `FAREWELL_S`, so that the peer can read its farewell before."""
        self._unproven.pop(connection, None)
        self._hang_up_at(connection, self._loop.now() + FAREWELL_S)

    def hang_up(self, connection: Connection) -> None:
        """Shut down the TCP connection, for which ZeroMQ has no call.

        The number of its descriptor may already belong to something else. So this method duplicates the descriptor, and
        then reads the reports of ZeroMQ. ZeroMQ reports a disconnection before it closes the descriptor: if none has
        been reported by then, the duplicate belongs to this connection.
        """
        now = self._loop.now()
        connection.hang_up_after(now)
        self._unproven.pop(connection, None)
        self._ending.pop(connection, None)
        if connection.gone:
            return
        try:
            duplicate = os.dup(connection.fd)
        except OSError:  # no descriptor is free now
            self._hang_up_at(connection, now + FAREWELL_S)
            return
        self.take_events()
        if connection.gone:
            os.close(duplicate)  # it may belong to something else, even to a file
            return
        with contextlib.suppress(OSError), sockets.socket(fileno=duplicate) as held:
            held.shutdown(sockets.SHUT_RDWR)

    def _hang_up_at(self, connection: Connection, when: float) -> None:
        connection.hang_up_after(when)
        self._ending[connection] = None
        self._loop.wake_at(when)

    def tick(self, now: float) -> None:
        """Close the connections whose time is over, and ask for the next tick."""
        limit_s = self._sessions.limits.handshake_s
        while self._unproven and next(iter(self._unproven)).since + limit_s <= now:
            oldest = next(iter(self._unproven))
            self._sessions.counters.refuse("handshake-deadline")
            self.hang_up(oldest)
        for connection in [c for c in self._ending if c.hang_up_at is not None and c.hang_up_at <= now]:
            self.hang_up(connection)
        for connection in itertools.chain(itertools.islice(self._unproven, 1), self._ending):
            due = connection.since + limit_s if connection.hang_up_at is None else connection.hang_up_at
            self._loop.wake_at(due)
