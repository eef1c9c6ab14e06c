"""The TCP connections of one listener, as the monitor of its ROUTER reports them.

ZeroMQ names a connection by its file descriptor, and numbers are reused. So every change of the table follows the
monitor's events in their order, and a connection is closed under ZeroMQ (which has no call for that) only after a check
that its number is still its own.
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
from paceline.transport.local.link import LocalLink
from paceline.transport.loop import Loop
from paceline.transport.sessions import Sessions
from paceline.transport.zmq.outbox import Outbox
from paceline.transport.zmq.sockets import ZmqSocket, monitor_events
from paceline.types import NodeId
from paceline.wire.handshake import ServerHandshake

FAREWELL_S = 0.2
"""How long a connection that is ended stays open, so that the peer can read why."""

WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
"""The events that the monitor must report."""


class Carrier(Protocol):
    """Sends on connections and ends them: the listener."""

    def send(self, connection: Connection, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Queue one message for `connection`."""
        ...

    def end(self, connection: Connection, rule: str, detail: str) -> None:
        """Tell the peer why, then hang up."""
        ...


class Connection:
    """One accepted TCP connection, and the `Link` of the session that it carries once `peer` is set."""

    __slots__ = ("_carrier", "fd", "gone", "handshake", "hang_up_at", "local", "outbox", "peer", "route", "since")

    def __init__(self, carrier: Carrier, outbox: Outbox, fd: int, since: float) -> None:
        self._carrier = carrier
        self.outbox = outbox
        self.fd = fd
        self.since = since
        self.route: bytes | None = None
        self.handshake: ServerHandshake | None = None
        self.peer: NodeId | None = None
        self.local: LocalLink | None = None
        self.hang_up_at: float | None = None
        self.gone = False

    def begin(self, route: bytes, handshake: ServerHandshake) -> None:
        """The first message came, from `route`: the handshake begins."""
        self.route = route
        self.handshake = handshake

    def carry(self, peer: NodeId, local: LocalLink | None) -> None:
        """The handshake has proven `peer`; the session goes by `local`, if there is one."""
        self.peer = peer
        self.local = local

    def hang_up_after(self, when: float) -> None:
        """Nothing of it is read any more; it is closed at `when`."""
        self.hang_up_at = when

    def lost(self) -> None:
        """The TCP connection is closed."""
        self.gone = True

    def send(self, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """As `Link.send`."""
        if self.local is not None:
            return self.local.send(header, frames)
        return self._carrier.send(self, header, frames)

    def end(self, rule: str, detail: str) -> None:
        """As `Link.end`."""
        self._carrier.end(self, rule, detail)


class Connections:
    """All accepted connections: those that must prove themselves in time, and those that are about to be closed.

    `on_closed` is called when connections have closed: the owner reads their last messages, then calls `take_closed`.
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
        """When the first of the closed connections closed that were not taken yet."""
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
        """The connection of a first message on descriptor `fd`; None if it has closed.

        An earlier connection may have had that number. The monitor reports a connection before any message comes in on
        it, so once all events are taken, the connection under this number is the sender's or a later one.
        """
        self.take_events()
        connection = self._open.get(fd)
        return None if connection is None or connection.peer is not None or connection.gone else connection

    def proven(self, connection: Connection) -> None:
        """The connection carries a session: its deadline is over."""
        self._unproven.pop(connection, None)

    @property
    def any_closed(self) -> bool:
        """Whether `take_closed` has something."""
        return bool(self._closed)

    def take_closed(self) -> list[Connection]:
        """The connections that have closed since the last call."""
        closed, self._closed = self._closed, []
        return closed

    # ------------------------------------------------------------ events of the monitor

    def take_events(self) -> None:
        """Take all events that the monitor has."""
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
        """Hang up the oldest unproven connections, if there are too many."""
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
        """Hang up after `FAREWELL_S`, in which the peer can read its farewell."""
        self._unproven.pop(connection, None)
        self._hang_up_at(connection, self._loop.now() + FAREWELL_S)

    def hang_up(self, connection: Connection) -> None:
        """Close the TCP connection under ZeroMQ.

        Its number may already belong to something else. ZeroMQ reports a disconnection before it closes the
        descriptor: if none is reported after this process has a duplicate, the duplicate is of this connection.
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
            os.close(duplicate)  # of something else, which need not be a socket
            return
        with contextlib.suppress(OSError), sockets.socket(fileno=duplicate) as held:
            held.shutdown(sockets.SHUT_RDWR)

    def _hang_up_at(self, connection: Connection, when: float) -> None:
        connection.hang_up_after(when)
        self._ending[connection] = None
        self._loop.wake_at(when)

    def tick(self, now: float) -> None:
        """Hang up what is overdue, and ask for the next tick."""
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
