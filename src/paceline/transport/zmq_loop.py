"""What a ZeroMQ port waits for: sockets that may be readable, and the next deadline. No threads.

A ZeroMQ socket has a file descriptor that becomes readable when something happens to the socket, and only
then: after the socket was used, it may have messages although its descriptor is quiet. So a socket that was
used is asked before the loop sleeps, and all others are left to one `poll` call. (`zmq.Poller` asks every
socket, twice, at each call.)
"""

from __future__ import annotations

import math
import select
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from paceline.transport.zmq_parts import ZmqSocket

_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_MAX_POLL_S = 86_400.0


class Source:
    """A socket to wait for. `read` takes one item from it and returns False when there is none left."""

    __slots__ = ("fd", "queued", "read", "socket")

    def __init__(self, socket: ZmqSocket, read: Callable[[], bool]) -> None:
        self.socket = socket
        self.read = read
        self.fd = int(socket.getsockopt(zmq.FD))
        self.queued = False


class Loop:
    """Sockets by readiness, and the earliest deadline anybody asked for."""

    def __init__(self) -> None:
        self.due = float("inf")
        self._poll = select.poll()
        self._sources: dict[int, Source] = {}
        self._signalled: deque[Source] = deque()
        self._used: deque[Source] = deque()

    @staticmethod
    def now() -> float:
        """The monotonic clock of every deadline."""
        return time.monotonic()

    def wake_at(self, when: float) -> None:
        """Ask for a tick at `when` or a little later."""
        if when < self.due:
            self.due = when

    def watch(self, sources: Sequence[Source]) -> None:
        """Wait for these from now on."""
        for source in sources:
            self._sources[source.fd] = source
            self._poll.register(source.fd, select.POLLIN)
            self.used(source)

    def unwatch(self, sources: Sequence[Source]) -> None:
        """Forget these: call it before their sockets are closed."""
        for source in sources:
            if self._sources.pop(source.fd, None) is not None:
                self._poll.unregister(source.fd)
            if source in self._used:
                self._used.remove(source)
            if source in self._signalled:
                self._signalled.remove(source)
            source.queued = True  # never again

    def used(self, source: Source) -> None:
        """`source` was sent to or read from: ask it before sleeping."""
        if not source.queued:
            source.queued = True
            self._used.append(source)

    def read_again(self, source: Source) -> None:
        """Have `source` read once more, even if it has nothing: its owner waits for "none left"."""
        if source.queued and source in self._used:
            self._used.remove(source)
            source.queued = False
        if not source.queued:
            source.queued = True
            self._signalled.append(source)

    def read_one(self) -> bool:
        """Read one item from the socket whose turn it is; False when none is known to be readable.

        Sockets take turns, so that no peer starves the others.
        """
        while True:
            if self._signalled:
                source = self._signalled.popleft()
                source.queued = False
                # "None left" means that the descriptor tells what happens next.
                if source.read():
                    self.used(source)
                return True
            if not self._used:
                return False
            source = self._used.popleft()
            source.queued = False
            if int(source.socket.getsockopt(_EVENTS)) & _POLLIN:
                source.queued = True
                self._signalled.append(source)

    def wait(self, wait_s: float) -> None:
        """Wait until something is readable, at most `wait_s` (rounded up to a millisecond)."""
        wait_ms = math.ceil(max(min(wait_s, _MAX_POLL_S), 0.0) * 1000)
        for fd, _ in self._poll.poll(wait_ms):
            source = self._sources.get(fd)
            if source is not None and not source.queued:
                source.queued = True
                self._signalled.append(source)
