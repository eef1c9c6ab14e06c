"""Functions on ZeroMQ sockets that both ends use: set options, read messages, watch connections, close."""

from __future__ import annotations

import itertools
import socket as sockets
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import zmq

from paceline.transport.admission import open_header
from paceline.transport.base import Frame
from paceline.transport.limits import LinkLimits
from paceline.transport.loop import Loop, Source
from paceline.transport.sealed.channel import Buffers, SealedChannel
from paceline.transport.sessions import Sessions
from paceline.transport.streams.link import StreamLinks
from paceline.types import NodeId
from paceline.wire.frames import WireLimits
from paceline.wire.handshake import SealKeys
from paceline.wire.slices import OVERHEAD_NBYTES, SLICE_NBYTES, goes_on, joined

ZmqSocket = zmq.Socket[bytes]
ZmqContext = zmq.Context[ZmqSocket]

ZERO_COPY_NBYTES = 64 << 10
"""Frames of this size and above are sent without a copy. Smaller frames are copied: tracking a send would cost more."""

# Plain numbers: operations on the enumerations take microseconds.
_NOW = int(zmq.NOBLOCK)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)

_MONITOR_EVENT = struct.Struct("=Hi")
_monitor_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class PortContext:
    """The objects and settings that all connections of one port share."""

    zmq: ZmqContext
    loop: Loop
    sessions: Sessions
    links: StreamLinks
    local: bool
    """Whether sessions with processes of this host may use shared memory."""
    insecure_blocks: bool | None = False
    """Whether blocks travel unsealed between hosts; None if this port does as the port does to which it connects."""
    buffers: Buffers = field(default_factory=Buffers)

    def seal(self, socket: sockets.socket, keys: SealKeys) -> SealedChannel:
        """Make a sealed channel of a TCP connection."""
        return SealedChannel(socket, keys.sending, keys.receiving, self.buffers, clear_blocks=keys.insecure_blocks)


class ZmqSource(Source):
    """A ZeroMQ socket that the loop waits for."""

    __slots__ = ("_socket",)

    def __init__(self, socket: ZmqSocket, read: Callable[[], bool]) -> None:
        super().__init__(int(socket.getsockopt(zmq.FD)), read)
        self._socket = socket

    def ready(self) -> bool:
        """See `Source.ready`."""
        return bool(int(self._socket.getsockopt(_EVENTS)) & _POLLIN)


class Incoming(NamedTuple):
    """One message as it came, perhaps of an unproven peer: its header, its frames, and the rule that it breaks."""

    first: zmq.Frame
    """What ZeroMQ delivered first: on a ROUTER the name of the connection, on a DEALER a slice of the header."""
    header: Frame
    frames: Sequence[Frame] = ()
    refused: str = ""
    """``frame-count``, ``frame-cap`` or ``frame-size`` if the message breaks that rule; the rest was dropped."""


def read_message(socket: ZmqSocket, limits: WireLimits, *, routed: bool) -> Incoming | None:
    """Read one message and join its slices; None if none has come. With `routed` the socket is a ROUTER.

    Frames are writable byte views. A frame of one slice is not copied, unless it is so small that a view would keep a
    larger buffer alive.
    """
    try:
        first = part = socket.recv(_NOW, copy=False)
    except zmq.Again:
        return None
    if routed:
        part = socket.recv(copy=False)  # does not wait, here and below: ZeroMQ delivers a message as a whole
    if not part.more and not goes_on(len(part)):
        return Incoming(first, part.buffer)
    assembly = _Assembly(limits)
    assembly.add(part)
    while part.more:
        part = socket.recv(copy=False)
        assembly.add(part)
    return assembly.message(first)


class _Assembly:
    """Joins the slices of one message. Drops them once the message breaks a rule."""

    __slots__ = ("_begun", "_frames", "_limits", "_refused")

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._frames: list[Frame] = []
        self._begun: list[Frame] = []
        self._refused = ""

    def add(self, part: zmq.Frame) -> None:
        """Take the next slice."""
        nbytes = len(part)
        if self._refused:
            return
        if goes_on(nbytes):
            self._begun.append(part.buffer)
            if len(self._begun) * nbytes > self._limits.max_frame_nbytes:
                self._refuse("frame-cap")
        elif len(self._frames) > self._limits.max_frames:
            self._refuse("frame-count")
        elif self._begun:
            self._begun.append(part.buffer)
            self._frames.append(joined(self._begun))
            self._begun = []
        else:
            self._frames.append(memoryview(bytearray(part.buffer)) if nbytes < ZERO_COPY_NBYTES else part.buffer)

    def message(self, first: zmq.Frame) -> Incoming:
        """The message, after its last slice."""
        if self._begun:
            self._refuse("frame-size")  # the end of a frame is missing
        frames = self._frames
        return Incoming(first, frames[0] if frames else memoryview(b""), tuple(frames[1:]), self._refused)

    def _refuse(self, rule: str) -> None:
        self._refused = rule
        self._begun = []
        del self._frames[1:]


def deliver(sessions: Sessions, peer: NodeId, incoming: Incoming) -> None:
    """Pass a message of a proven peer to the sessions."""
    if incoming.refused:
        sessions.counters.refuse(incoming.refused)
        return
    message = open_header(incoming.header, sessions.limits.wire, sessions.counters)
    if message is not None:
        sessions.received(peer, message, incoming.frames)


def set_limits(socket: ZmqSocket, limits: LinkLimits) -> None:
    """Set the options of `socket` that follow from `limits`."""
    socket.setsockopt(zmq.SNDHWM, limits.queue_messages)
    socket.setsockopt(zmq.RCVHWM, limits.queue_messages)
    # ZeroMQ has one limit for unproven and for proven peers: see `paceline.wire.slices`.
    socket.setsockopt(zmq.MAXMSGSIZE, SLICE_NBYTES + OVERHEAD_NBYTES)
    # ZeroMQ's own handshake gets twice the time, so that the handshake of this package fails first and can say why.
    socket.setsockopt(zmq.HANDSHAKE_IVL, round(limits.handshake_s * 2000))


def set_pings(socket: ZmqSocket, limits: LinkLimits) -> None:
    """Make ZeroMQ close connections whose other end is silent. Its own thread sends pings and answers them."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, round(limits.ping_s * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(limits.quiet_s * 1000))


def open_monitor(context: ZmqContext, socket: ZmqSocket, events: int) -> ZmqSocket:
    """Open a socket that reports the connection events of `socket` in order.

    The queue of events has no limit: with a limit, ZeroMQ's I/O thread would wait whenever the reader is slow.
    """
    name = f"inproc://monitor-{next(_monitor_numbers)}"
    socket.monitor(name, events)
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.LINGER, 0)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(name)
    return monitor


def monitor_events(monitor: ZmqSocket) -> Iterator[tuple[int, int]]:
    """Read all events that have come, as (event, value); the value is a file descriptor or an error number."""
    while True:
        try:
            parts: list[Any] = monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(parts[0]) >= _MONITOR_EVENT.size:
            yield _MONITOR_EVENT.unpack_from(parts[0])


def close_watched(socket: ZmqSocket, monitor: ZmqSocket, linger_s: float) -> None:
    """Close a socket and its monitor, in the only order that neither hangs nor leaks."""
    socket.disable_monitor()
    monitor.close(0)
    socket.close(round(linger_s * 1000))
