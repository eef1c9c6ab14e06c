"""The listening end: one ROUTER socket for all peers that connect.

Peers do not choose their routing id, so the proof of a peer belongs to exactly one TCP connection, and no other
connection can take it over. ZeroMQ gives the descriptor of the connection with every message. By the descriptor, the
listener finds the `Connection` of a message, and the peer whose `PeerDown` follows the end of a connection.

A session with a process of this host may use shared memory or a plain stream, and one with another host uses a sealed
connection. This connection then stays open as the proof of the peer: when it or the other one ends, the session ends.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from paceline.errors import AuthenticationError, RefusedFrameError, TransportError
from paceline.transport.base import Delivery, Frame
from paceline.transport.local.listener import LocalLaneError, LocalListener
from paceline.transport.loop import Source
from paceline.transport.memory.heap import keep_freed_memory
from paceline.transport.memory.loans import PeerProcess
from paceline.transport.sessions import NotSentError
from paceline.transport.streams.channel import Channel, UnixChannel
from paceline.transport.streams.link import CLOSED, StreamLink
from paceline.transport.streams.listener import StreamListener
from paceline.transport.streams.tcp import PlainChannel
from paceline.transport.zmq.connections import FAREWELL_S, WATCHED, Connection, Connections
from paceline.transport.zmq.sockets import (
    Incoming,
    PortContext,
    ZmqSocket,
    ZmqSource,
    close_watched,
    deliver,
    open_monitor,
    read_message,
    set_limits,
    set_pings,
)
from paceline.transport.zmq.tickets import TicketCheck, open_ticket_socket
from paceline.types import NodeId
from paceline.wire.handshake import Farewell, ServerHandshake, encode_control, is_control
from paceline.wire.token import TicketGate, curve_secret

logger = logging.getLogger(__name__)

_SRCFD = int(zmq.SRCFD)
# The end of a connection is reported once the ROUTER is empty, so that its last messages are read before. Other peers
# may keep the ROUTER busy, so the end is reported after this many seconds at the latest.
_LAST_MESSAGES_S = 1.0


class Listener:
    """Proves the peers that connect, and passes the messages of proven peers to the sessions."""

    def __init__(self, shared: PortContext, host: str, port: int, *, encrypt: bool, one_port: bool = False) -> None:
        """Listen at `host` and `port`. Unless `one_port`, peers are offered a second connection: sealed if `encrypt`.

        Raises:
            TransportError: the address is in use, or it is not an address of this machine.
        """
        self._sessions = shared.sessions
        self._links = shared.links
        self._loop = shared.loop
        self._context = shared
        self._local_listener: LocalListener | None = None
        self._stream_listener: StreamListener | None = None
        self._encrypt = encrypt
        self._routes: dict[bytes, Connection] = {}
        self._sources: list[Source] = []
        self._ticket_socket = None if encrypt else open_ticket_socket(shared.zmq)
        self._router = self._open_router(shared, host, encrypt)
        self._monitor = open_monitor(shared.zmq, self._router, WATCHED)
        self._connections = Connections(self._monitor, self._loop, self._sessions, self, self._read_again)
        try:
            self._router.bind(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"cannot listen on {host} port {port}: {error}") from None
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._source: Source = ZmqSource(self._router, self._read)
        self._sources = [self._source, ZmqSource(self._monitor, self._watch)]
        if self._ticket_socket is not None:
            gate = TicketGate(self._sessions.token, int(self.address.rpartition(":")[2]))
            tickets = TicketCheck(self._ticket_socket, gate, self._sessions.counters)
            self._sources.append(ZmqSource(self._ticket_socket, tickets.answer_one))
        self._loop.watch(self._sources)
        if not one_port:
            self._stream_listener = StreamListener(self._loop, self._sessions.limits, self._sessions.counters, host)
        if shared.local:
            try:
                self._local_listener = LocalListener(self._loop, self._sessions.limits)
            except LocalLaneError as error:
                logger.info("peers on this host are reached by TCP, not by shared memory: %s", error)

    @staticmethod
    def _open_router(shared: PortContext, host: str, encrypt: bool) -> ZmqSocket:
        router, limits = shared.zmq.socket(zmq.ROUTER), shared.sessions.limits
        set_limits(router, limits)
        router.setsockopt(zmq.LINGER, round(limits.linger_s * 1000))
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.IPV6, int(":" in host))
        if encrypt:  # TCP alone does not notice that the network is cut while no data is sent
            set_pings(router, limits)
            router.setsockopt(zmq.CURVE_SERVER, 1)
            router.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(curve_secret(shared.sessions.token)))
        else:
            router.setsockopt(zmq.PLAIN_SERVER, 1)
        return router

    def send(self, connection: Connection, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """See `Carrier.send`. The peer must have sent a message on `connection` before."""
        self._loop.used(self._source)
        return connection.outbox.send(self._router, connection.route, header, frames)

    # ------------------------------------------------------------ reading

    def _read(self) -> bool:
        incoming = read_message(self._router, self._sessions.limits.wire, routed=True)
        if incoming is None:
            self._report_closed()
            return False
        route = incoming.first.bytes
        fd = _descriptor(incoming.first)
        connection = self._routes.get(route)
        if connection is None or connection.fd != fd:
            connection = self._begin(route, fd)
        if connection is None or connection.hang_up_at is not None:
            self._sessions.counters.refuse("connection-over")
        elif connection.peer is None:
            self._prove(connection, incoming)
        elif is_control(incoming.header):
            self._refuse(connection, "control", "a control frame within a session")
        elif connection.link is not None:
            self._sessions.counters.refuse("lane")
        else:
            deliver(self._sessions, connection.peer, incoming)
        if self._connections.any_closed:
            if self._loop.now() - self._connections.closed_since > _LAST_MESSAGES_S:
                self._report_closed()
            else:
                self._read_again()
        return True

    def _read_again(self) -> None:
        """Make the loop read until the ROUTER is empty, so that the last messages of closed connections are read."""
        self._loop.read_again(self._source)

    def _begin(self, route: bytes, fd: int) -> Connection | None:
        """Begin the handshake with a connection whose first message has come; None if the connection has closed."""
        connection = self._connections.find_new(fd)
        if connection is None:
            return None
        if connection.route is not None:
            del self._routes[connection.route]
        stream = None if self._stream_listener is None else self._stream_listener.offer(sealed=self._encrypt)
        handshake = ServerHandshake(
            self._sessions.node,
            self._sessions.token,
            offer=None if self._local_listener is None else self._local_listener.offer(),
            sealed=stream if self._encrypt else None,
            plain=None if self._encrypt else stream,
            insecure_blocks=bool(self._context.insecure_blocks),
        )
        connection.begin(route, handshake)
        self._routes[route] = connection
        return connection

    def _prove(self, connection: Connection, incoming: Incoming) -> None:
        """Handle one message of the handshake on `connection`."""
        handshake = connection.handshake
        assert handshake is not None
        if incoming.frames or incoming.refused or not is_control(incoming.header):
            self._refuse(connection, "unauthenticated", "a message before the handshake")
            return
        try:
            answer = handshake.receive(bytes(incoming.header))
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
                self._connections.hang_up(connection)
                return
        if handshake.peer is not None:
            try:
                link = self._open_link(connection, handshake, handshake.peer)
            except (LocalLaneError, RefusedFrameError) as error:
                self._refuse(connection, "lane", str(error))
                return
            connection.carry(handshake.peer, link)
            self._connections.proven(connection)
            self._sessions.up(handshake.peer, connection, None)

    def _open_link(self, connection: Connection, handshake: ServerHandshake, peer: NodeId) -> StreamLink | None:
        """Open the stream that the client has chosen; None if it has chosen to stay on this connection."""
        process: PeerProcess | None = None
        channel: Channel
        if handshake.lane == "local":
            assert self._local_listener is not None
            assert handshake.offer is not None
            socket, process = self._local_listener.take(handshake.offer.nonce)
            channel = UnixChannel(socket)
        elif handshake.lane == "sealed":
            assert self._stream_listener is not None
            assert handshake.sealed is not None
            socket = self._stream_listener.take(handshake.sealed.nonce)
            channel = self._context.seal(socket, handshake.keys())
        elif handshake.lane == "plain":
            assert self._stream_listener is not None
            assert handshake.plain is not None
            channel = PlainChannel(self._stream_listener.take(handshake.plain.nonce))
        else:
            keep_freed_memory()
            return None
        return StreamLink(self._links, channel, process, peer, lambda reason: self._link_over(connection, reason))

    def _link_over(self, connection: Connection, reason: str) -> None:
        if connection.peer is not None:
            self._sessions.down(connection.peer, connection, reason)
        self._connections.hang_up(connection)

    # ------------------------------------------------------------ ends

    def _watch(self) -> bool:
        self._connections.take_events()
        self._connections.drop_surplus()
        return False

    def _report_closed(self) -> None:
        for connection in self._connections.take_closed():
            if connection.route is not None:
                self._routes.pop(connection.route, None)
            if connection.link is not None:
                connection.link.lost(CLOSED)  # ends the session after the last messages
            elif connection.peer is not None:
                self._sessions.down(connection.peer, connection, CLOSED)

    def _refuse(self, connection: Connection, rule: str, detail: str) -> None:
        self._sessions.counters.refuse(rule)
        if connection.peer is not None:
            self._sessions.down(connection.peer, connection, f"refused ({rule}): {detail}")
        self.end(connection, rule, detail)

    def end(self, connection: Connection, rule: str, detail: str) -> None:
        """See `Carrier.end`. Messages that the peer sends before the connection closes are dropped."""
        if connection.gone or connection.hang_up_at is not None:
            return
        farewell = Farewell(rule, detail[:200])
        try:
            if connection.link is not None:
                connection.link.finish(FAREWELL_S, farewell)
            else:
                self.send(connection, encode_control(farewell), ())
        except NotSentError:
            self._connections.hang_up(connection)
            return
        self._connections.end_soon(connection)

    def tick(self, now: float) -> None:
        """Close the connections whose time is over, and ask for the next tick."""
        if self._local_listener is not None:
            self._local_listener.tick(now)
        if self._stream_listener is not None:
            self._stream_listener.tick(now)
        self._connections.tick(now)

    def close(self) -> None:
        """Close the sockets. ZeroMQ sends queued messages in the background, for `linger_s` at most."""
        self._loop.unwatch(self._sources)
        if self._local_listener is not None:
            self._local_listener.close()
        if self._stream_listener is not None:
            self._stream_listener.close()
        for connection in self._connections:
            if connection.link is not None:
                connection.link.finish(self._sessions.limits.linger_s)
        close_watched(self._router, self._monitor, self._sessions.limits.linger_s)
        if self._ticket_socket is not None:
            self._ticket_socket.close(0)


def _descriptor(frame: zmq.Frame) -> int:
    try:
        return frame.get(_SRCFD)
    except zmq.ZMQError:
        return -1
