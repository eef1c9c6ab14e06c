"""What both ends of a ZeroMQ connection do alike: queue parts, read parts, watch the connection."""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from paceline.transport.base import Delivery, Frame
from paceline.transport.limits import LinkLimits

ZmqSocket = zmq.Socket[bytes]
ZmqContext = zmq.Context[ZmqSocket]

ZERO_COPY_NBYTES = 64 << 10
"""Frames from this size on are sent without a copy: below it, tracking costs more than copying."""

# Plain numbers: operations on the enumerations take microseconds.
_NOW = _LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)

_MONITOR_EVENT = struct.Struct("=Hi")
_monitor_numbers = itertools.count()


class _Done:
    """A delivery that was complete at once."""

    __slots__ = ()
    done = True


COPIED: Delivery = _Done()


class _Handover:
    """Frames that ZeroMQ still reads."""

    __slots__ = ("_trackers", "nbytes")

    def __init__(self, trackers: list[zmq.MessageTracker], nbytes: int) -> None:
        self._trackers = trackers
        self.nbytes = nbytes

    @property
    def done(self) -> bool:
        trackers = self._trackers
        while trackers:
            if not trackers[-1].done:
                return False
            trackers.pop()
        return True


class Outbox:
    """What one peer has not taken yet: never blocks, and knows when it is full."""

    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._waiting: deque[_Handover] = deque()
        self._nbytes = 0

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames stay within the bytes that may wait for a peer (a lone message always does)."""
        waiting = self._waiting
        while waiting and waiting[0].done:
            self._nbytes -= waiting.popleft().nbytes
        return not waiting or self._nbytes + sum(frame.nbytes for frame in frames) <= self._limits.queue_nbytes

    def send(self, socket: ZmqSocket, route: bytes | None, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Queue one message; raises `zmq.Again` when full, another `zmq.ZMQError` when there is no route.

        Only the first part can fail: ZeroMQ takes a message whole or not at all.
        """
        if not frames:
            if route is not None:
                socket.send(route, _MORE)
            socket.send(header, _LAST)
            return COPIED
        if not self.fits(frames):
            raise zmq.Again
        if route is not None:
            socket.send(route, _MORE)
        socket.send(header, _MORE)
        trackers: list[zmq.MessageTracker] = []
        nbytes = 0
        last = len(frames) - 1
        for position, frame in enumerate(frames):
            flags = _LAST if position == last else _MORE
            if frame.nbytes < ZERO_COPY_NBYTES:
                socket.send(frame, flags)
            else:
                tracker = socket.send(frame, flags, copy=False, track=True)
                assert tracker is not None
                trackers.append(tracker)
                nbytes += frame.nbytes
        if not trackers:
            return COPIED
        handover = _Handover(trackers, nbytes)
        self._waiting.append(handover)
        self._nbytes += nbytes
        return handover


def read_parts(socket: ZmqSocket, max_parts: int) -> tuple[list[zmq.Frame], bool] | None:
    """One whole message, not copied, and whether parts beyond `max_parts` were dropped; None for none."""
    try:
        part = socket.recv(_NOW, copy=False)
    except zmq.Again:
        return None
    parts = [part]
    overflow = False
    while part.more:
        part = socket.recv(copy=False)  # the rest of a message is always there
        if len(parts) < max_parts:
            parts.append(part)
        else:
            overflow = True
    return parts, overflow


def frame_views(parts: Sequence[zmq.Frame]) -> tuple[Frame, ...]:
    """The parts as writable byte views. Small ones are copied: they would pin a buffer that others share."""
    return tuple(memoryview(bytearray(part.buffer)) if len(part) < ZERO_COPY_NBYTES else part.buffer for part in parts)


def set_pings(socket: ZmqSocket, limits: LinkLimits) -> None:
    """Connections of `socket` end when their other end does not answer. ZeroMQ asks, and answers, in its own thread."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, round(limits.ping_s * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(limits.quiet_s * 1000))


def open_monitor(context: ZmqContext, socket: ZmqSocket, events: int) -> ZmqSocket:
    """A socket that reports connection events of `socket`, in the order in which they happened.

    It has no high-water mark: ZeroMQ's I/O thread would stop for a reader that is busy.
    """
    name = f"inproc://monitor-{next(_monitor_numbers)}"
    socket.monitor(name, events)
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.LINGER, 0)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(name)
    return monitor


def monitor_events(monitor: ZmqSocket) -> Iterator[tuple[int, int]]:
    """All (event, value) reported by now; the value is a file descriptor or an error number."""
    while True:
        try:
            parts: list[Any] = monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(parts[0]) >= _MONITOR_EVENT.size:
            yield _MONITOR_EVENT.unpack_from(parts[0])


def close_watched(socket: ZmqSocket, monitor: ZmqSocket, linger_s: float) -> None:
    """Close a socket and its monitor, in the one order that neither hangs nor leaks."""
    socket.disable_monitor()
    monitor.close(0)
    socket.close(round(linger_s * 1000))
