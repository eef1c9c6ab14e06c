"""What a port waits for: sockets that may be readable, and the next deadline. No threads.

A ZeroMQ socket has a file descriptor that becomes readable when something happens to the socket, and only
then: after the socket was used, it may have messages although its descriptor is quiet. So a socket that was
used is asked before the loop sleeps, and all others are left to one `poll` call. (`zmq.Poller` asks every
socket, twice, at each call.) A plain socket is asked only for what it has read ahead.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence

from paceline.transport.spin import Spin

_MAX_POLL_S = 86_400.0


def _nothing() -> bool:
    return False


class Source:
    """A plain socket to wait for.

    `read` takes one item from it and returns False when none is known to be left; `write` goes on with what could
    not be sent at once.
    """

    __slots__ = ("fd", "queued", "read", "write")

    def __init__(self, fd: int, read: Callable[[], bool], write: Callable[[], None] = lambda: None) -> None:
        self.fd = fd
        self.read = read
        self.write = write
        self.queued = False

    def forget(self) -> None:
        """Call its owner no more, and do not keep it alive."""
        self.read = _nothing
        self.write = lambda: None

    def ready(self) -> bool:
        """Whether `read` has something although `poll` may not say so; asked after the socket was used."""
        return True


class Loop:
    """Sockets by readiness, and the earliest deadline anybody asked for."""

    def __init__(self) -> None:
        self.due = float("inf")
        self.spins = 0
        """How many peers are near enough for their answers to be looked for before sleeping."""
        self.said: object = None
        """What kind of thing was said last: how long the answer takes depends on it."""
        self._spins: dict[object, Spin] = {}
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

    def want_write(self, source: Source, wanted: bool) -> None:
        """Call `source.write` as soon as its socket takes more, or do not any longer."""
        if source.fd in self._sources:
            self._poll.modify(source.fd, select.POLLIN | select.POLLOUT if wanted else select.POLLIN)

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
            if source.ready():
                source.queued = True
                self._signalled.append(source)

    def wait(self, wait_s: float) -> None:
        """Wait until something is readable, at most `wait_s` (rounded up to a millisecond)."""
        ready = self._look(wait_s) if self.spins and wait_s > 0 else []
        if not ready:
            ready = self._poll.poll(math.ceil(max(min(wait_s, _MAX_POLL_S), 0.0) * 1000))
        for fd, events in ready:
            source = self._sources.get(fd)
            if source is None:
                continue
            if events & select.POLLOUT:
                source.write()
                if events == select.POLLOUT:
                    continue
            if not source.queued:
                source.queued = True
                self._signalled.append(source)

    def _look(self, wait_s: float) -> list[tuple[int, int]]:
        """What becomes readable within a moment, without sleeping."""
        spin = self._spins.get(self.said)
        if spin is None:
            spin = self._spins[self.said] = Spin()
        poll, clock, give_way = self._poll.poll, time.monotonic, os.sched_yield
        budget_s = min(spin.budget_s(), wait_s)
        if not budget_s:
            return []
        now = clock()
        until = now + budget_s
        while not (ready := poll(0)):
            give_way()
            before, now = now, clock()
            if spin.crowded(now - before):
                return poll(0)
            if now >= until:
                spin.in_vain()
                return []
        spin.paid()
        return ready
