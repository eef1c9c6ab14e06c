"""The messages that ZeroMQ has not sent to one peer yet: counts the waiting bytes of frames that are not copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import zmq

from paceline.transport.base import COPIED, Delivery, Frame
from paceline.transport.limits import LinkLimits
from paceline.transport.sessions import NotSentError
from paceline.transport.zmq.sockets import ZERO_COPY_NBYTES, ZmqSocket
from paceline.wire.slices import SLICE_NBYTES, goes_on, slices

# Plain numbers: operations on the enumerations take microseconds.
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


class _Handover:
    """The `Delivery` of frames that ZeroMQ reads in place: done when ZeroMQ reads none of them any more.

    ZeroMQ sends and releases the slices of one connection in their order. So only the last one of a message is tracked:
    to track a slice costs more than to send it.
    """

    __slots__ = ("_last", "nbytes")

    def __init__(self, last: zmq.MessageTracker, nbytes: int) -> None:
        self._last = last
        self.nbytes = nbytes

    @property
    def done(self) -> bool:
        return self._last.done


class Outbox:
    """The messages that wait for one peer. `send` never blocks; it refuses a message when the queue is full."""

    def __init__(self, limits: LinkLimits) -> None:
        self._limits = limits
        self._waiting: deque[_Handover] = deque()
        self._nbytes = 0

    @property
    def empty(self) -> bool:
        """Whether ZeroMQ has released every frame that it reads in place."""
        return all(handover.done for handover in self._waiting)

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
            if frames and not self.fits(frames):
                raise NotSentError.queue_full()
            if route is not None:
                socket.send(route, _MORE)
            if len(header) < SLICE_NBYTES:
                socket.send(header, _MORE if frames else _LAST)
            else:
                for part in slices(memoryview(header)):
                    socket.send(part, _MORE if frames or goes_on(part.nbytes) else _LAST)
        except zmq.Again:
            raise NotSentError.queue_full() from None
        except zmq.ZMQError as error:
            raise NotSentError("unreachable", f"the peer is not reachable ({error})") from None
        return self._send_frames(socket, frames) if frames else COPIED

    def _send_frames(self, socket: ZmqSocket, frames: Sequence[Frame]) -> Delivery:
        """Queue the frames of a message whose header is queued: the large ones without a copy."""
        parts = [part for frame in frames for part in slices(frame)]
        in_place = [position for position, part in enumerate(parts) if part.nbytes >= ZERO_COPY_NBYTES]
        tracked, last = in_place[-1] if in_place else -1, len(parts) - 1
        tracker: zmq.MessageTracker | None = None
        nbytes = 0
        for position, part in enumerate(parts):
            flags = _LAST if position == last else _MORE
            if part.nbytes < ZERO_COPY_NBYTES:
                socket.send(part, flags)
            elif position != tracked:
                socket.send(part, flags, copy=False)
                nbytes += part.nbytes
            else:
                tracker = socket.send(part, flags, copy=False, track=True)
                nbytes += part.nbytes
        if tracker is None:
            return COPIED
        handover = _Handover(tracker, nbytes)
        self._waiting.append(handover)
        self._nbytes += nbytes
        return handover
