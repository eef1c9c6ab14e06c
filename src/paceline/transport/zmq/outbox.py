"""The messages that ZeroMQ has not sent to one peer yet: counts the waiting bytes of frames that are not copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import zmq

from paceline.transport.base import COPIED, Delivery, Frame
from paceline.transport.limits import LinkLimits
from paceline.transport.sessions import NotSentError
from paceline.transport.zmq.sockets import ZERO_COPY_NBYTES, ZmqSocket

# Plain numbers: operations on the enumerations take microseconds.
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


class _Handover:
    """The `Delivery` of frames that ZeroMQ reads in place: done when ZeroMQ reads none of them any more."""

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
    """The messages that wait for one peer. `send` never blocks; it refuses a message when the queue is full."""

    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._waiting: deque[_Handover] = deque()
        self._nbytes = 0

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether `frames` may be queued within the limit of waiting bytes. True if no large frame waits."""
        waiting = self._waiting
        while waiting and waiting[0].done:
            self._nbytes -= waiting.popleft().nbytes
        return not waiting or self._nbytes + sum(frame.nbytes for frame in frames) <= self._limits.queue_nbytes

    def send(self, socket: ZmqSocket, route: bytes | None, header: bytes, frames: Sequence[Frame]) -> Delivery:
        """Queue one message for the connection named `route` (None: the socket has only one connection).

        Raises:
            NotSentError: the queue is full, or there is no such connection. Nothing was sent: ZeroMQ accepts all frames
                of a message or none, so only the first frame can fail.
        """
        try:
            if not frames:
                if route is not None:
                    socket.send(route, _MORE)
                socket.send(header, _LAST)
                return COPIED
            if not self.fits(frames):
                raise NotSentError.queue_full()
            if route is not None:
                socket.send(route, _MORE)
            socket.send(header, _MORE)
        except zmq.Again:
            raise NotSentError.queue_full() from None
        except zmq.ZMQError as error:
            raise NotSentError("unreachable", f"the peer is not reachable ({error})") from None
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
