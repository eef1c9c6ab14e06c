"""Functions on ZeroMQ sockets that both ends use: set options, read messages, watch connections, close."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from paceline.transport.admission import open_header
from paceline.transport.base import Frame
from paceline.transport.limits import LinkLimits
from paceline.transport.local.link import LocalLinks
from paceline.transport.loop import Loop, Source
from paceline.transport.sessions import Sessions
from paceline.types import NodeId

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
    """The objects that all connections of one port share. Without `links`, no session gets a local link."""

    zmq: ZmqContext
    loop: Loop
    sessions: Sessions
    links: LocalLinks | None


class ZmqSource(Source):
    """A ZeroMQ socket that the loop waits for."""

    __slots__ = ("_socket",)

    def __init__(self, socket: ZmqSocket, read: Callable[[], bool]) -> None:
        super().__init__(int(socket.getsockopt(zmq.FD)), read)
        self._socket = socket

    def ready(self) -> bool:
        """See `Source.ready`."""
        return bool(int(self._socket.getsockopt(_EVENTS)) & _POLLIN)


def read_message(socket: ZmqSocket, max_frames: int) -> tuple[list[zmq.Frame], bool] | None:
    """Read one message without copying it; None if none has come.

    Returns its first `max_frames` frames, and whether it had more, which are dropped.
    """
    try:
        frame = socket.recv(_NOW, copy=False)
    except zmq.Again:
        return None
    frames = [frame]
    overflow = False
    while frame.more:
        frame = socket.recv(copy=False)  # does not wait: ZeroMQ delivers all frames of a message together
        if len(frames) < max_frames:
            frames.append(frame)
        else:
            overflow = True
    return frames, overflow


def deliver(sessions: Sessions, peer: NodeId, frames: Sequence[zmq.Frame], overflow: bool) -> None:
    """Pass a message of a proven peer to the sessions. The first of `frames` is its header."""
    limits, counters = sessions.limits.wire, sessions.counters
    if overflow:
        counters.refuse("frame-count")
        return
    message = open_header(frames[0].buffer, limits, counters)
    if message is not None:
        sessions.received(peer, message, _views(frames[1:]))


def _views(frames: Sequence[zmq.Frame]) -> tuple[Frame, ...]:
    """The frames as writable byte views. Small frames are copied, because a view would keep a shared buffer alive."""
    return tuple(
        memoryview(bytearray(frame.buffer)) if len(frame) < ZERO_COPY_NBYTES else frame.buffer for frame in frames
    )


def set_limits(socket: ZmqSocket, limits: LinkLimits) -> None:
    """Set the options of `socket` that follow from `limits`."""
    socket.setsockopt(zmq.SNDHWM, limits.queue_messages)
    socket.setsockopt(zmq.RCVHWM, limits.queue_messages)
    socket.setsockopt(zmq.MAXMSGSIZE, max(limits.wire.max_frame_nbytes, limits.wire.max_header_nbytes))
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
