"""The listening end: one ROUTER for all peers that connect.

Peers do not choose their routing id, so a proof belongs to exactly one TCP connection and cannot be taken
over. The socket's monitor tells which connections exist, by file descriptor, and every message carries the
descriptor it came in on: that is how a closed connection becomes the `PeerDown` of one peer, and how a
connection that must go is hung up.

A session with a process of this host may be carried by a local link. Its connection stays as its proof, and the end of
either is the end of the session.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket as sockets
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from paceline.errors import AuthenticationError, RefusedFrameError, TransportError
from paceline.transport.base import Delivery, Frame
from paceline.transport.local.door import Door, LocalLaneError
from paceline.transport.local.link import CLOSED, LocalLink, Locals
from paceline.transport.loop import Loop, Source
from paceline.transport.memory.heap import keep_freed_memory
from paceline.transport.sessions import NotSentError, Sessions
from paceline.transport.zmq.outbox import Outbox
from paceline.transport.zmq.sockets import (
    ZmqContext,
    ZmqSocket,
    ZmqSource,
    close_watched,
    deliver,
    monitor_events,
    open_monitor,
    read_message,
    set_pings,
)
from paceline.types import NodeId
from paceline.wire.handshake import (
    Farewell,
    ServerHandshake,
    TicketGate,
    curve_secret,
    encode_control,
    is_control,
)

logger = logging.getLogger(__name__)

_SRCFD = int(zmq.SRCFD)
_FAREWELL_S = 0.2
# The messages of a closed connection are read before its end is reported, but others may keep the ROUTER busy.
_LAST_MESSAGES_S = 1.0
_WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_PARTS = 8


class Connection:
    """One accepted TCP connection. `peer` is set while it carries a session."""

    __slots__ = ("_listener", "fd", "gone", "handshake", "hang_up_at", "local", "outbox", "peer", "route", "since")

    def __init__(self, listener: Listener, fd: int, since: float) -> None:
        self._listener = listener
        self.fd = fd
        self.since = since
        self.route: bytes | None = None
        self.handshake: ServerHandshake | None = None
        self.peer: NodeId | None = None
        self.local: LocalLink | None = None
        self.outbox = Outbox(listener.sessions.limits)
        self.hang_up_at: float | None = None
        self.gone = False

    def send(self, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """As `Link.send`."""
        if self.local is not None:
            return self.local.send(header, frames)
        return self._listener.send(self, header, frames)

    def end(self, rule: str, detail: str) -> None:
        """As `Link.end`."""
        self._listener.end(self, rule, detail)


class Listener:
    """Accepts, proves and watches connections; hands messages of proven peers to the sessions."""

    def __init__(
        self,
        context: ZmqContext,
        loop: Loop,
        sessions: Sessions,
        shared: Locals | None,
        host: str,
        port: int,
        *,
        encrypt: bool,
    ) -> None:
        """Listen there. Without `shared`, no session is offered a local link.

        Raises:
            TransportError: the address is in use or not here.
        """
        self.sessions = sessions
        self._shared = shared
        self._door: Door | None = None
        self._loop = loop
        self._connections: dict[int, Connection] = {}
        self._routes: dict[bytes, Connection] = {}
        self._unproven: dict[Connection, None] = {}
        self._ending: dict[Connection, None] = {}
        self._closed: list[Connection] = []
        self._closed_since = 0.0
        self._sources: list[Source] = []
        self._zap: ZmqSocket | None = None
        if not encrypt:
            self._zap = context.socket(zmq.REP)
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind(_ZAP_ENDPOINT)
        self.router = context.socket(zmq.ROUTER)
        self._configure(encrypt, ipv6=":" in host)
        self._monitor = open_monitor(context, self.router, _WATCHED)
        try:
            self.router.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"cannot listen on {host} port {port}: {error}") from None
        self.address = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._gate = TicketGate(sessions.token, int(self.address.rpartition(":")[2]))
        self._source: Source = ZmqSource(self.router, self._read)
        self._sources = [self._source, ZmqSource(self._monitor, self._watch)]
        if self._zap is not None:
            self._sources.append(ZmqSource(self._zap, self._admit))
        loop.watch(self._sources)
        if shared is not None:
            try:
                self._door = Door(loop, sessions.limits)
            except LocalLaneError as error:
                logger.info("peers on this host come by TCP: %s", error)

    def _configure(self, encrypt: bool, *, ipv6: bool) -> None:
        router, limits = self.router, self.sessions.limits
        router.setsockopt(zmq.LINGER, round(limits.linger_s * 1000))
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, limits.queue_messages)
        router.setsockopt(zmq.RCVHWM, limits.queue_messages)
        router.setsockopt(zmq.MAXMSGSIZE, max(limits.wire.max_frame_nbytes, limits.wire.max_header_nbytes))
        router.setsockopt(zmq.HANDSHAKE_IVL, round(limits.handshake_s * 2000))  # ours ends first
        router.setsockopt(zmq.IPV6, int(ipv6))
        if encrypt:  # it crosses a network, which may be cut without a word
            set_pings(router, limits)
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(curve_secret(self.sessions.token)))
        else:
            router.setsockopt(zmq.PLAIN_SERVER, 1)

    def send(self, connection: Connection, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Queue one message for `connection`, which has spoken before."""
        self._loop.used(self._source)
        return connection.outbox.send(self.router, connection.route, header, frames)

    # ------------------------------------------------------------ reading

    def _read(self) -> bool:
        got = read_message(self.router, self.sessions.limits.wire.max_frames + 2)
        if got is None:
            self._report_closed()
            return False
        parts, overflow = got
        route = parts[0].bytes
        fd = _descriptor(parts[0])
        connection = self._routes.get(route)
        if connection is None or connection.fd != fd:
            connection = self._meet(route, fd)
        if connection is None or connection.hang_up_at is not None or len(parts) < 2:
            self.sessions.counters.refuse("connection-over")
        elif connection.peer is None:
            self._prove(connection, parts)
        elif is_control(parts[1].buffer):
            self._refuse(connection, "control", "a control frame within a session")
        elif connection.local is not None:
            self.sessions.counters.refuse("lane")
        else:
            deliver(self.sessions, connection.peer, parts[1:], overflow)
        if self._closed:
            if self._loop.now() - self._closed_since > _LAST_MESSAGES_S:
                self._report_closed()
            else:
                self._loop.read_again(self._source)  # until there is none left
        return True

    def _meet(self, route: bytes, fd: int) -> Connection | None:
        """The connection of a first message.

        A descriptor may have been used by an earlier connection. Its acceptance was reported before any
        message came in on it, so once the monitor is drained, the connection under this number is this one or
        a later one.
        """
        self._take_events()
        connection = self._connections.get(fd)
        if connection is None or connection.peer is not None or connection.gone:
            return None
        if connection.route is not None:
            del self._routes[connection.route]
        connection.route = route
        offer = None if self._door is None else self._door.offer()
        connection.handshake = ServerHandshake(self.sessions.node, self.sessions.token, offer=offer)
        self._routes[route] = connection
        return connection

    def _prove(self, connection: Connection, parts: Sequence[zmq.Frame]) -> None:
        handshake = connection.handshake
        assert handshake is not None
        if len(parts) != 2 or not is_control(parts[1].buffer):
            self._refuse(connection, "unauthenticated", "a message before the handshake")
            return
        try:
            answer = handshake.receive(parts[1].bytes)
        except AuthenticationError as error:
            self._refuse(connection, "token", str(error))
            return
        except RefusedFrameError as error:
            self._refuse(connection, error.rule, error.detail)
            return
        if answer is not None:
            try:
                connection.send(answer, ())
            except NotSentError:
                self._hang_up(connection)
                return
        if handshake.peer is not None:
            if handshake.lane == "tcp":
                keep_freed_memory()
            elif not self._open_link(connection, handshake):
                return
            connection.peer = handshake.peer
            self._unproven.pop(connection, None)
            self.sessions.up(handshake.peer, connection, None)

    def _open_link(self, connection: Connection, handshake: ServerHandshake) -> bool:
        assert self._door is not None
        assert self._shared is not None
        assert handshake.offer is not None
        assert handshake.peer is not None
        try:
            link = self._door.take(handshake.offer.nonce)
        except LocalLaneError as error:
            self._refuse(connection, "lane", str(error))
            return False
        connection.local = LocalLink(
            self._shared, *link, handshake.peer, lambda reason: self._link_over(connection, reason)
        )
        return True

    def _link_over(self, connection: Connection, reason: str) -> None:
        if connection.peer is not None:
            self.sessions.down(connection.peer, connection, reason)
        self._hang_up(connection)

    def _admit(self) -> bool:
        """Answer one question of ZeroMQ's own handshake: may this stranger send frames at all?"""
        assert self._zap is not None
        try:
            parts = self._zap.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        admitted = False
        if len(parts) == _ZAP_PARTS and parts[5] == b"PLAIN":
            name, password = parts[6].decode("latin-1"), parts[7].decode("latin-1")
            admitted = self._gate.admits(name, password)
        if not admitted:
            self.sessions.counters.refuse("ticket")
        status = (b"200", b"OK") if admitted else (b"400", b"no ticket of this job")
        self._zap.send_multipart([b"1.0", parts[1] if len(parts) > 1 else b"", *status, b"", b""])
        return True

    # ------------------------------------------------------------ connections

    def _watch(self) -> bool:
        self._take_events()
        while len(self._unproven) > self.sessions.limits.max_unproven:
            self.sessions.counters.refuse("too-many-unproven")
            self._hang_up(next(iter(self._unproven)))
        return False

    def _take_events(self) -> None:
        """All connection events so far. `_report_closed` reports what has closed, after its last messages."""
        for event, value in monitor_events(self._monitor):
            if event == zmq.EVENT_ACCEPTED:
                self._accept(value)
            elif event == zmq.EVENT_DISCONNECTED:
                connection = self._connections.pop(value, None)
                if connection is not None:
                    self._lose(connection)
            else:
                self.sessions.counters.refuse("connection-handshake")

    def _accept(self, fd: int) -> None:
        stale = self._connections.pop(fd, None)
        if stale is not None:
            self._lose(stale)
        connection = Connection(self, fd, self._loop.now())
        self._connections[fd] = connection
        self._unproven[connection] = None
        self._loop.wake_at(connection.since + self.sessions.limits.handshake_s)

    def _lose(self, connection: Connection) -> None:
        connection.gone = True
        self._unproven.pop(connection, None)
        self._ending.pop(connection, None)
        if not self._closed:
            self._closed_since = self._loop.now()
        self._closed.append(connection)
        # Its last messages come first: `_read` reports it when the ROUTER is empty.
        self._loop.read_again(self._source)

    def _report_closed(self) -> None:
        closed, self._closed = self._closed, []
        for connection in closed:
            if connection.route is not None:
                self._routes.pop(connection.route, None)
            if connection.local is not None:
                connection.local.lost(CLOSED)
            if connection.peer is not None:
                self.sessions.down(connection.peer, connection, CLOSED)

    def _refuse(self, connection: Connection, rule: str, detail: str) -> None:
        self.sessions.counters.refuse(rule)
        if connection.peer is not None:
            self.sessions.down(connection.peer, connection, f"refused ({rule}): {detail}")
        self.end(connection, rule, detail)

    def end(self, connection: Connection, rule: str, detail: str) -> None:
        """Tell the peer, then hang up a little later; what it sends meanwhile is dropped."""
        if connection.gone or connection.hang_up_at is not None:
            return
        self._unproven.pop(connection, None)
        farewell = Farewell(rule, detail[:200])
        try:
            if connection.local is not None:
                connection.local.finish(_FAREWELL_S, farewell)
            else:
                self.send(connection, encode_control(farewell), ())
        except NotSentError:
            self._hang_up(connection)
            return
        connection.hang_up_at = self._loop.now() + _FAREWELL_S
        self._ending[connection] = None
        self._loop.wake_at(connection.hang_up_at)

    def _hang_up(self, connection: Connection) -> None:
        """Close the TCP connection under ZeroMQ, which has no call for that.

        The number may already belong to something else. ZeroMQ reports a disconnection before it closes the
        descriptor: if none is reported after we hold a duplicate, the duplicate is of this connection.
        """
        connection.hang_up_at = self._loop.now()
        self._unproven.pop(connection, None)
        self._ending.pop(connection, None)
        if connection.gone:
            return
        try:
            duplicate = os.dup(connection.fd)
        except OSError:  # no descriptor is free just now
            connection.hang_up_at += _FAREWELL_S
            self._ending[connection] = None
            self._loop.wake_at(connection.hang_up_at)
            return
        self._take_events()
        if connection.gone:
            os.close(duplicate)  # of whatever has that number now, which need not be a socket
            return
        with contextlib.suppress(OSError), sockets.socket(fileno=duplicate) as held:
            held.shutdown(sockets.SHUT_RDWR)

    def tick(self, now: float) -> None:
        """Drop what is overdue, and ask for the next tick."""
        if self._door is not None:
            self._door.tick(now)
        limit_s = self.sessions.limits.handshake_s
        while self._unproven and next(iter(self._unproven)).since + limit_s <= now:
            oldest = next(iter(self._unproven))
            self.sessions.counters.refuse("handshake-deadline")
            self._hang_up(oldest)
        for connection in [c for c in self._ending if c.hang_up_at is not None and c.hang_up_at <= now]:
            self._hang_up(connection)
        for connection in itertools.chain(itertools.islice(self._unproven, 1), self._ending):
            due = connection.since + limit_s if connection.hang_up_at is None else connection.hang_up_at
            self._loop.wake_at(due)

    def close(self) -> None:
        """Close the sockets, lingering for what is queued."""
        self._loop.unwatch(self._sources)
        if self._door is not None:
            self._door.close()
        for connection in self._connections.values():
            if connection.local is not None:
                connection.local.finish(self.sessions.limits.linger_s)
        close_watched(self.router, self._monitor, self.sessions.limits.linger_s)
        if self._zap is not None:
            self._zap.close(0)


def _descriptor(part: zmq.Frame) -> int:
    try:
        return part.get(_SRCFD)
    except zmq.ZMQError:
        return -1
