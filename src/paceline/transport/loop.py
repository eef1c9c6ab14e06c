"""The event loop of a port: it waits until a socket is readable or a deadline has come. No threads.

The file descriptor of a ZeroMQ socket becomes readable only when something happens to the socket: after a read or a
send, the socket may have messages although `poll` does not report its descriptor. So before it sleeps, the loop asks
each socket that was used (`Source.ready`), and waits for all others with one `poll` call. (`zmq.Poller` would ask every
socket, twice, at each call.)
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
    """A plain socket that the loop waits for.

    `read` reads one item; it returns True if it knows that another item has come. `write` sends the bytes that the
    socket did not accept before.
    """

    __slots__ = ("fd", "queued", "read", "write")

    def __init__(self, fd: int, read: Callable[[], bool], write: Callable[[], None] = lambda: None) -> None:
        self.fd = fd
        self.read = read
        self.write = write
        self.queued = False

    def forget(self) -> None:
        """Drop `read` and `write`, so that the loop does not call their owner again and does not keep it alive."""
        self.read = _nothing
        self.write = lambda: None

    def ready(self) -> bool:
        """Whether `read` may find an item that `poll` does not report. The loop asks after the socket was used."""
        return True


class Loop:
    """The sockets that one port waits for, and the earliest deadline that a part of the port asked for."""

    def __init__(self) -> None:
        self.due = float("inf")
        """When the port must call the `tick` of its parts."""
        self._near_peers = 0
        self._sent: object = None
        self._spins: dict[object, Spin] = {}
        self._poll = select.poll()
        self._sources: dict[int, Source] = {}
        self._signalled: deque[Source] = deque()
        self._used: deque[Source] = deque()

    now = staticmethod(time.monotonic)
    """The time on the monotonic clock that all deadlines use."""

    def wake_at(self, when: float) -> None:
        """Ask for a tick at `when` or a little later."""
        if when < self.due:
            self.due = when

    def begin_tick(self) -> None:
        """Clear the deadline, because the port ticks now. Each part that needs another tick must ask again."""
        self.due = float("inf")

    def sent(self, kind: object) -> None:
        """Note the kind of the last sent message. The loop decides for each kind whether to spin for the answer."""
        self._sent = kind

    def peer_is_near(self) -> None:
        """Count one more near peer: it answers so soon that the loop spins for answers before it sleeps."""
        self._near_peers += 1

    def near_peer_is_gone(self) -> None:
        """Undo `peer_is_near`."""
        self._near_peers -= 1

    def watch(self, sources: Sequence[Source]) -> None:
        """Wait for these sockets from now on."""
        for source in sources:
            self._sources[source.fd] = source
            self._poll.register(source.fd, select.POLLIN)
            self.used(source)

    def want_write(self, source: Source, wanted: bool) -> None:
        """Call `source.write` whenever its socket accepts more bytes; with `wanted` False, stop calling it."""
        if source.fd in self._sources:
            self._poll.modify(source.fd, select.POLLIN | select.POLLOUT if wanted else select.POLLIN)

    def unwatch(self, sources: Sequence[Source]) -> None:
        """Stop waiting for these sockets. Call this before you close them."""
        for source in sources:
            if self._sources.pop(source.fd, None) is not None:
                self._poll.unregister(source.fd)
            if source in self._used:
                self._used.remove(source)
            if source in self._signalled:
                self._signalled.remove(source)
            source.queued = True  # `used` and `read_again` then never queue it again

    def used(self, source: Source) -> None:
        """Note that `source` was sent to or read from: the loop calls its `ready` before it sleeps."""
        if not source.queued:
            source.queued = True
            self._used.append(source)

    def read_again(self, source: Source) -> None:
        """Call `source.read` once more, even if no item has come: its owner needs to learn that none is left."""
        if source.queued and source in self._used:
            self._used.remove(source)
            source.queued = False
        if not source.queued:
            source.queued = True
            self._signalled.append(source)

    def read_one(self) -> bool:
        """Read one item from the next socket; False if no socket is known to be readable.

        The sockets take turns, so that no peer starves the others.
        """
        while True:
            if self._signalled:
                source = self._signalled.popleft()
                source.queued = False
                # If `read` returns False, `poll` reports the next item, so `ready` need not be asked.
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
        """Wait until a socket is readable or writable, at most `wait_s` (rounded up to a millisecond)."""
        ready = self._spin(wait_s) if self._near_peers and wait_s > 0 else []
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

    def _spin(self, wait_s: float) -> list[tuple[int, int]]:
        """Poll without sleeping for as long as `Spin` allows; returns what `poll` found, empty if nothing."""
        spin = self._spins.get(self._sent)
        if spin is None:
            spin = self._spins[self._sent] = Spin()
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
