"""The connecting end: one DEALER socket for each address, and exactly one TCP connection for each DEALER.

The socket and its queue end with the connection: ZeroMQ must not connect again by itself, because it would send
messages for one proven peer to another process that listens at the address by then. The next attempt opens a new one.

If both sides can, a session with a process of this host uses shared memory or a plain stream, and one with another host
uses a sealed connection. This connection then stays open as the proof of the peer: when it or the other one ends, the
session ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from paceline.errors import AuthenticationError, RefusedFrameError
from paceline.transport.base import Delivery, Frame, PeerDown
from paceline.transport.local import listener as local
from paceline.transport.local.listener import LocalLaneError
from paceline.transport.loop import Source
from paceline.transport.memory.heap import keep_freed_memory
from paceline.transport.memory.loans import PeerProcess
from paceline.transport.streams.channel import Channel, UnixChannel
from paceline.transport.streams.dialing import CONNECT_S, StreamDial
from paceline.transport.streams.link import StreamLink
from paceline.transport.streams.listener import FOUND
from paceline.transport.streams.tcp import PlainChannel
from paceline.transport.zmq.outbox import Outbox
from paceline.transport.zmq.owners import stranger_at
from paceline.transport.zmq.sockets import (
    PortContext,
    ZmqSocket,
    ZmqSource,
    close_watched,
    deliver,
    monitor_events,
    open_monitor,
    read_message,
    set_limits,
    set_pings,
)
from paceline.types import NodeId
from paceline.wire.handshake import (
    Accepted,
    ClientHandshake,
    Farewell,
    LaneName,
    Offer,
    decode_control,
    is_control,
)
from paceline.wire.token import curve_secret, make_ticket

logger = logging.getLogger(__name__)

# ZeroMQ must not connect again by itself (see above). Its option for that also drops messages that have come but were
# not read yet, so the pause before ZeroMQ connects again is a day instead.
_NO_RECONNECT_MS = 86_400_000
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_WATCHED = zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | _FAILED


class Dial:
    """Connects to one address and proves the peer there, and again whenever the session ends, until it is stopped."""

    def __init__(self, shared: PortContext, address: str, host: str, port: int, *, encrypt: bool) -> None:
        """Start the first attempt. `host` and `port` are the parts of `address`."""
        self.address = address
        self.peer: NodeId | None = None
        self.stopped = False
        self._shared = shared
        self._context = shared.zmq
        self._loop = shared.loop
        self._sessions = shared.sessions
        self._links = shared.links
        self._host = host
        self._port = port
        self._encrypt = encrypt
        self._pause_s = shared.sessions.limits.retry_min_s
        self._socket: ZmqSocket | None = None
        self._monitor: ZmqSocket | None = None
        self._sources: list[Source] = []
        self._outbox = Outbox(shared.sessions.limits)
        self._handshake: ClientHandshake | None = None
        self._link: StreamLink | None = None
        self._stream_dial: StreamDial | None = None
        self._only_tcp = False
        self._said_slow = False
        self._lost: str | None = None
        self._reported: str | None = None
        self._due = 0.0
        self._start(self._loop.now())

    # ------------------------------------------------------------ one attempt

    def _start(self, now: float) -> None:
        if not self._encrypt and (user := stranger_at(self._host, self._port)) is not None:
            self._refused(
                "owner", f"a process of user {user} listens at {self.address}, and this process runs as {os.geteuid()}"
            )
            return
        limits, token = self._sessions.limits, self._sessions.token
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        set_limits(socket, limits)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, round(limits.handshake_s * 1000))
        socket.setsockopt(zmq.RECONNECT_IVL, _NO_RECONNECT_MS)
        socket.setsockopt(zmq.IPV6, int("[" in self.address))
        if self._encrypt:  # TCP alone does not notice that the network is cut while no data is sent
            set_pings(socket, limits)
            mine, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_PUBLICKEY, mine)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
            theirs = zmq.curve_public(z85.encode(curve_secret(token)))
            socket.setsockopt(zmq.CURVE_SERVERKEY, theirs)
        else:
            name, password = make_ticket(token, self._port)
            socket.setsockopt_string(zmq.PLAIN_USERNAME, name)
            socket.setsockopt_string(zmq.PLAIN_PASSWORD, password)
        self._socket = socket
        self._monitor = open_monitor(self._context, socket, _WATCHED)
        self._outbox = Outbox(limits)
        self._handshake = ClientHandshake(self._sessions.node, token, insecure_blocks=self._shared.insecure_blocks)
        self._lost = None
        self._due = now + limits.handshake_s
        socket.connect(self.address)
        # Again: the peer has refused the connection already, and the monitor says why.
        with contextlib.suppress(zmq.Again):
            socket.send(self._handshake.hello(), zmq.NOBLOCK)
        self._sources = [ZmqSource(socket, self._read), ZmqSource(self._monitor, self._watch)]
        self._loop.watch(self._sources)
        self._loop.wake_at(self._due)

    def _close_socket(self, linger_s: float = 0.0) -> None:
        if self._stream_dial is not None:
            self._stream_dial.cancel()
            self._stream_dial = None
        if self._link is not None:
            self._link.finish(linger_s)
            self._link = None
        if self._socket is not None and self._monitor is not None:
            self._loop.unwatch(self._sources)
            self._sources = []
            close_watched(self._socket, self._monitor, linger_s)
        self._socket = self._monitor = self._handshake = None

    def _fail(self, reason: str) -> None:
        """End this attempt, or its session, and start the next attempt after a pause."""
        # libzmq aborts the process (session_base.cpp, `clean_pipes`) if a connection breaks just after its socket was
        # closed without linger while a message of several parts was half sent. With linger it can read the other parts.
        self._close_socket(0.0 if self._outbox.empty else self._sessions.limits.linger_s)
        if self.peer is not None:
            peer, self.peer = self.peer, None
            self._sessions.down(peer, self, reason)
        self._due = self._loop.now() + self._pause_s
        self._loop.wake_at(self._due)
        self._pause_s = min(2 * self._pause_s, self._sessions.limits.retry_max_s)

    def _refused(self, rule: str, reason: str) -> None:
        """End an attempt in which one side refused the other. The role gets one `PeerDown` with the address as peer."""
        self._sessions.counters.refuse(rule)
        if self._reported != rule and self.peer is None:
            self._reported = rule
            self._sessions.report(PeerDown(self.address, reason, rule))
        self._fail(reason)

    # ------------------------------------------------------------ reading

    def _read(self) -> bool:
        socket = self._socket
        if socket is None:
            return False
        incoming = read_message(socket, self._sessions.limits.wire, routed=False)
        if incoming is None:
            if self._lost is not None:
                self._lose(self._lost)
            return False
        if is_control(incoming.header):
            self._control(bytes(incoming.header))
        elif self.peer is None:
            self._sessions.counters.refuse("unauthenticated")
        elif self._link is not None:
            self._sessions.counters.refuse("lane")
        else:
            deliver(self._sessions, self.peer, incoming)
        if self._lost is not None and self._socket is not None:
            self._loop.read_again(self._sources[0])  # `_lose` ends the session when nothing is left
        return self._socket is not None

    def _control(self, frame: bytes) -> None:
        handshake = self._handshake
        try:
            if self.peer is not None:
                control = decode_control(frame)
                if isinstance(control, Farewell):
                    if control.rule == "lane":
                        self._go_by_tcp(control.detail)
                    self._lose(f"ended by the peer ({control.rule}): {control.detail}")
                    return
                raise RefusedFrameError(
                    "control", f"{type(control).__name__} came within a session, where only Farewell may come"
                )
            assert handshake is not None
            answer = handshake.receive(frame)
            if answer is not None:
                self._answer(answer)
            elif handshake.accepted is not None:
                self._choose(handshake, handshake.accepted)
        except AuthenticationError as error:
            self._refused("token", str(error))
        except RefusedFrameError as error:
            self._refused(error.rule, str(error))
        except zmq.ZMQError as error:
            self._fail(f"the peer is not reachable ({error})")

    def _answer(self, frame: bytes) -> None:
        assert self._socket is not None
        self._socket.send(frame, zmq.NOBLOCK)
        self._loop.used(self._sources[0])

    # ------------------------------------------------------------ the lane

    def _choose(self, handshake: ClientHandshake, accepted: Accepted) -> None:
        """Begin the session on the best lane that both sides can use. A sealed connection has to be made first."""
        local = self._connect_local(accepted.offer)
        if local is not None:
            socket, process = local
            self._begin(handshake, "local", UnixChannel(socket), process)
        elif (offer := accepted.sealed if self._encrypt else accepted.plain) is not None:
            self._due = min(self._due, self._loop.now() + CONNECT_S)
            self._loop.wake_at(self._due)
            self._stream_dial = StreamDial(
                self._loop,
                self._host,
                offer,
                FOUND if self._encrypt else offer.secret,
                lambda socket: self._stream_ready(handshake, socket),
                lambda reason: self._stream_failed(handshake, reason),
            )
            self._stream_dial.start()
        else:
            self._begin(handshake, "tcp")

    def _stream_ready(self, handshake: ClientHandshake, socket: sockets.socket) -> None:
        self._stream_dial = None
        if self._encrypt:
            self._begin(handshake, "sealed", self._shared.seal(socket, handshake.keys()))
        else:
            self._begin(handshake, "plain", PlainChannel(socket))

    def _stream_failed(self, handshake: ClientHandshake, reason: str) -> None:
        """Stay on the ZeroMQ connection, which is as safe, and slow."""
        self._stream_dial = None
        if not self._said_slow:
            self._said_slow = True
            logger.warning(
                "blocks to %s take longer than needed, up to three times: %s. Open the ports of that host to this one",
                self.address,
                reason,
            )
        self._begin(handshake, "tcp")

    def _begin(
        self,
        handshake: ClientHandshake,
        lane: LaneName,
        channel: Channel | None = None,
        process: PeerProcess | None = None,
    ) -> None:
        """Tell the peer the lane, and begin the session on it."""
        try:
            self._answer(handshake.choose(lane))
        except zmq.ZMQError as error:
            if channel is not None:
                channel.close()
            self._fail(f"the peer is not reachable ({error})")
            return
        assert handshake.peer is not None
        self.peer = handshake.peer
        self._reported = None
        self._pause_s = self._sessions.limits.retry_min_s
        self._due = float("inf")
        if channel is not None:
            self._link = StreamLink(self._links, channel, process, self.peer, self._link_over)
        else:
            keep_freed_memory()
        self._sessions.up(self.peer, self, self.address)

    def _connect_local(self, offer: Offer | None) -> tuple[sockets.socket, PeerProcess] | None:
        """Connect to the process that made `offer`; returns a unix socket and the process, None if TCP must be used."""
        if not self._shared.local or self._only_tcp:
            return None
        try:
            if offer is None:
                raise LocalLaneError("the peer offers no local link")
            return local.connect(offer)
        except LocalLaneError as error:
            self._go_by_tcp(str(error))
            return None

    def _go_by_tcp(self, why: str) -> None:
        self._only_tcp = True
        logger.info("messages to %s go by TCP, not by shared memory: %s", self.address, why)

    def _link_over(self, reason: str) -> None:
        if self._link is not None and self._link.unusable:
            self._go_by_tcp(reason)
        self._fail(reason)

    def _lose(self, reason: str) -> None:
        """End the session with a peer that is gone, after its last messages were read."""
        if self._link is not None:
            self._link.lost(reason)
        else:
            self._fail(reason)

    def _watch(self) -> bool:
        """Handle all connection events. The end of a session is reported after its last messages were read."""
        if self._monitor is None:
            return False
        for event, _ in monitor_events(self._monitor):
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._refused("token", f"{self.address} refused this process: the two have different job tokens")
                return False
            if event & _FAILED:
                reason = f"{self.address} ended the handshake: it has another job token, or it was closing"
                self._refused("connection-handshake", reason)
                return False
            if event == zmq.EVENT_DISCONNECTED:
                self._lost = "the connection was closed"
            else:
                self._lost = "no process listens at this address"
            self._loop.read_again(self._sources[0])
        return False

    # ------------------------------------------------------------ the port's side

    def send(self, header: bytes, frames: Sequence[Frame], later: bool = False) -> Delivery:
        """See `Link.send`."""
        if self._link is not None:
            return self._link.send(header, frames, later)
        assert self._socket is not None
        self._loop.used(self._sources[0])
        return self._outbox.send(self._socket, None, header, frames)

    def end(self, rule: str, detail: str) -> None:
        """See `Link.end`. Then connects again, unless a newer connection has replaced this one."""
        self.peer = None
        if rule == "replaced":
            self.stop()
        else:
            self._fail(detail)

    def tick(self, now: float) -> None:
        """Begin an attempt that is due, end one that is overdue, and ask for the next tick."""
        if self._due > now:
            self._loop.wake_at(self._due)
        elif self._socket is None:
            self._start(now)
        elif self._stream_dial is not None:
            self._stream_dial.time_is_over()
        else:
            self._fail("the handshake took too long")

    def stop(self) -> None:
        """Close and do not connect again. ZeroMQ sends queued messages in the background, for `linger_s` at most."""
        self.stopped = True
        self.peer = None
        self._due = float("inf")
        self._close_socket(self._sessions.limits.linger_s)
