"""The connecting end: one DEALER for each address, and exactly one TCP connection for each DEALER.

When the connection ends, so does the socket, with all that was queued in it: a message meant for one proven
peer never goes out on a connection that ZeroMQ made by itself to whoever listens there now. The next attempt
starts from nothing.

A session with a process of this host is carried by a local link, if both sides can; the connection then stays as its
proof, and the end of either is the end of the session.
"""

from __future__ import annotations

import logging
import socket as sockets
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from paceline.errors import AuthenticationError, RefusedFrameError
from paceline.transport.base import Delivery, Frame, PeerDown
from paceline.transport.local.door import LocalLaneError, knock
from paceline.transport.local.link import LocalLink, Locals
from paceline.transport.loop import Loop, Source
from paceline.transport.memory.heap import keep_freed_memory
from paceline.transport.memory.loans import Witness
from paceline.transport.sessions import Sessions
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
    ClientHandshake,
    Farewell,
    Offer,
    curve_secret,
    decode_control,
    is_control,
    make_ticket,
)

logger = logging.getLogger(__name__)

# ZeroMQ must not reconnect by itself (see above). Its "never" also throws away what has arrived but was not
# read yet, so it is told to wait for a day instead.
_NO_RECONNECT_MS = 86_400_000
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_WATCHED = zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | _FAILED


class Dial:
    """Keeps trying to have a session at one address until it is stopped."""

    def __init__(
        self,
        context: ZmqContext,
        loop: Loop,
        sessions: Sessions,
        shared: Locals | None,
        address: str,
        port: int,
        *,
        encrypt: bool,
    ) -> None:
        """Start the first attempt. Without `shared`, no session gets a local link."""
        self.address = address
        self.peer: NodeId | None = None
        self.stopped = False
        self._context = context
        self._loop = loop
        self._sessions = sessions
        self._shared = shared
        self._port = port
        self._encrypt = encrypt
        self._pause_s = sessions.limits.retry_min_s
        self._socket: ZmqSocket | None = None
        self._monitor: ZmqSocket | None = None
        self._sources: list[Source] = []
        self._outbox = Outbox(sessions.limits)
        self._handshake: ClientHandshake | None = None
        self._local: LocalLink | None = None
        self._not_local: str | None = None
        self._lost: str | None = None
        self._told: str | None = None
        self._due = 0.0
        self._start(loop.now())

    # ------------------------------------------------------------ one attempt

    def _start(self, now: float) -> None:
        limits, token = self._sessions.limits, self._sessions.token
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, limits.queue_messages)
        socket.setsockopt(zmq.RCVHWM, limits.queue_messages)
        socket.setsockopt(zmq.MAXMSGSIZE, max(limits.wire.max_frame_nbytes, limits.wire.max_header_nbytes))
        socket.setsockopt(zmq.HANDSHAKE_IVL, round(limits.handshake_s * 2000))  # ours ends first
        socket.setsockopt(zmq.CONNECT_TIMEOUT, round(limits.handshake_s * 1000))
        socket.setsockopt(zmq.RECONNECT_IVL, _NO_RECONNECT_MS)
        socket.setsockopt(zmq.IPV6, int("[" in self.address))
        if self._encrypt:  # it crosses a network, which may be cut without a word
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
        self._handshake = ClientHandshake(self._sessions.node, token)
        self._lost = None
        self._due = now + limits.handshake_s
        socket.connect(self.address)
        socket.send(self._handshake.hello(), zmq.NOBLOCK)
        self._sources = [ZmqSource(socket, self._read), ZmqSource(self._monitor, self._watch)]
        self._loop.watch(self._sources)
        self._loop.wake_at(self._due)

    def _close_socket(self, linger_s: float = 0.0) -> None:
        if self._local is not None:
            self._local.finish(linger_s)
            self._local = None
        if self._socket is not None and self._monitor is not None:
            self._loop.unwatch(self._sources)
            self._sources = []
            close_watched(self._socket, self._monitor, linger_s)
        self._socket = self._monitor = self._handshake = None

    def _fail(self, reason: str) -> None:
        """This attempt, or the session it became, is over; the next one starts after a pause."""
        self._close_socket()
        if self.peer is not None:
            peer, self.peer = self.peer, None
            self._sessions.down(peer, self, reason)
        self._due = self._loop.now() + self._pause_s
        self._loop.wake_at(self._due)
        self._pause_s = min(2 * self._pause_s, self._sessions.limits.retry_max_s)

    def _refused(self, rule: str, reason: str) -> None:
        """The listener and we do not accept each other: the role is told once, by the address."""
        self._sessions.counters.refuse(rule)
        if self._told != rule and self.peer is None:
            self._told = rule
            self._sessions.events.append(PeerDown(self.address, reason))
        self._fail(reason)

    # ------------------------------------------------------------ reading

    def _read(self) -> bool:
        socket = self._socket
        if socket is None:
            return False
        got = read_message(socket, self._sessions.limits.wire.max_frames + 1)
        if got is None:
            if self._lost is not None:
                self._lose(self._lost)
            return False
        parts, overflow = got
        if is_control(parts[0].buffer):
            self._control(parts[0].bytes)
        elif self.peer is None:
            self._sessions.counters.refuse("unauthenticated")
        elif self._local is not None:
            self._sessions.counters.refuse("lane")
        else:
            deliver(self._sessions, self.peer, parts, overflow)
        if self._lost is not None and self._socket is not None:
            self._loop.read_again(self._sources[0])  # until there is none left
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
                raise RefusedFrameError("control", f"{type(control).__name__} within a session")
            assert handshake is not None
            assert self._socket is not None
            answer = handshake.receive(frame)
            link = None
            if handshake.welcome is not None:
                link = self._knock(handshake.welcome.offer)
                answer = handshake.choose("tcp" if link is None else "local")
            if answer is not None:
                self._socket.send(answer, zmq.NOBLOCK)
                self._loop.used(self._sources[0])
        except AuthenticationError as error:
            self._refused("token", str(error))
        except RefusedFrameError as error:
            self._refused(error.rule, str(error))
        except zmq.ZMQError as error:
            self._fail(f"not reachable ({error})")
        else:
            if handshake.peer is not None:
                self.peer = handshake.peer
                self._told = None
                self._pause_s = self._sessions.limits.retry_min_s
                self._due = float("inf")
                if link is not None and self._shared is not None:
                    self._local = LocalLink(self._shared, *link, self.peer, self._link_over)
                else:
                    keep_freed_memory()
                self._sessions.up(self.peer, self, self.address)

    def _knock(self, offer: Offer | None) -> tuple[sockets.socket, Witness] | None:
        """A socket of our own to the process that made the offer, if both sides want and can."""
        if self._shared is None or self._not_local is not None:
            return None
        try:
            if offer is None:
                raise LocalLaneError("it offers no local link")
            return knock(offer)
        except LocalLaneError as error:
            self._go_by_tcp(str(error))
            return None

    def _go_by_tcp(self, why: str) -> None:
        self._not_local = why
        logger.info("messages to %s go by TCP, not by shared memory: %s", self.address, why)

    def _link_over(self, reason: str) -> None:
        if self._local is not None and self._local.unusable:
            self._go_by_tcp(reason)
        self._fail(reason)

    def _lose(self, reason: str) -> None:
        """The session is over as soon as its last messages were read."""
        if self._local is not None:
            self._local.lost(reason)
        else:
            self._fail(reason)

    def _watch(self) -> bool:
        """Take all connection events; the end of a session is reported after its last messages were read."""
        if self._monitor is None:
            return False
        for event, _ in monitor_events(self._monitor):
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._refused("token", f"{self.address} refused this process: it has another token")
                return False
            if event & _FAILED:
                reason = f"{self.address} ended the handshake: it has another token, or it was closing"
                self._refused("connection-handshake", reason)
                return False
            if event == zmq.EVENT_DISCONNECTED:
                self._lost = "the connection was closed"
            else:
                self._lost = "nobody listens there"
            self._loop.read_again(self._sources[0])
        return False

    # ------------------------------------------------------------ the port's side

    def send(self, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """As `Link.send`."""
        if self._local is not None:
            return self._local.send(header, frames)
        assert self._socket is not None
        self._loop.used(self._sources[0])
        return self._outbox.send(self._socket, None, header, frames)

    def end(self, rule: str, detail: str) -> None:
        """As `Link.end`. The address is tried again, unless a newer connection has replaced this one."""
        self.peer = None
        if rule == "replaced":
            self.stop()
        else:
            self._fail(detail)

    def tick(self, now: float) -> None:
        """Give up or begin an attempt that is due, and ask for the next tick."""
        if self._due > now:
            self._loop.wake_at(self._due)
        elif self._socket is None:
            self._start(now)
        else:
            self._fail("the handshake took too long")

    def stop(self) -> None:
        """Close for good, handing over what is queued in the background."""
        self.stopped = True
        self.peer = None
        self._due = float("inf")
        self._close_socket(self._sessions.limits.linger_s)
