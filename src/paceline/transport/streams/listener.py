"""The listening end of streams over TCP: a TCP port beside the port that proves the peers.

A peer learns the port and a one-time name of its connection on its proven ZeroMQ connection. It connects and sends the
name; the listener answers. A sealed connection proves both sides by its keys, so one byte is the answer there. A plain
one has no keys: the name proves the peer, and the answer, a second one-time secret, proves the listener. Nothing else
is read from a connection before the listening side takes it for a session, so a stranger costs a socket and 32 bytes
for a few seconds.
"""

from __future__ import annotations

import contextlib
import secrets
import socket as sockets
from collections.abc import Callable

from paceline.errors import RefusedFrameError, TransportError
from paceline.transport.base import Counters
from paceline.transport.limits import LinkLimits
from paceline.transport.loop import Loop, Source
from paceline.wire.handshake import NONCE_NBYTES, StreamOffer

_BACKLOG = 512
_MAX_OFFERS = 1024
FOUND = b"\x06"
"""What the listener answers to a sealed connection with a name that it has offered."""


class _Guest:
    """A connection that no session has taken yet."""

    __slots__ = ("name", "since", "socket", "source")

    def __init__(self, socket: sockets.socket, since: float, read: Callable[[_Guest], bool]) -> None:
        self.socket = socket
        self.since = since
        self.name = b""
        self.source = Source(socket.fileno(), lambda: read(self))


class StreamListener:
    """Accepts connections and finds them by their names. Closes those that are not taken in time, or are too many."""

    def __init__(self, loop: Loop, limits: LinkLimits, counters: Counters, host: str) -> None:
        """Listen at `host`, an address of this machine, on a TCP port that the system chooses.

        Raises:
            TransportError: the system gives no port.
        """
        self._loop = loop
        self._limits = limits
        self._counters = counters
        self._host = host
        self._offered: dict[bytes, bytes] = {}
        self._guests: dict[_Guest, None] = {}
        family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
        try:
            self._socket = sockets.create_server((host, 0), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise TransportError(f"cannot listen on {host} for the connections that carry blocks: {error}") from None
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._source = Source(self._socket.fileno(), self._accept)
        loop.watch([self._source])

    def offer(self, *, sealed: bool) -> StreamOffer:
        """Make an offer for one peer, with a new name and a new secret."""
        offer = StreamOffer(self._host, self.port, secrets.token_bytes(NONCE_NBYTES), secrets.token_bytes(NONCE_NBYTES))
        self._offered[offer.nonce] = FOUND if sealed else offer.secret
        if len(self._offered) > _MAX_OFFERS:
            del self._offered[next(iter(self._offered))]
        return offer

    def take(self, name: bytes) -> sockets.socket:
        """The connection that has sent `name`. The peer chooses its lane after the answer, so call this then.

        Raises:
            RefusedFrameError: rule ``lane``: there is no such connection.
        """
        for guest in self._guests:
            if guest.name == name:
                self._forget(guest)
                return guest.socket
        raise RefusedFrameError("lane", "the peer chose a second connection and did not make it")

    def tick(self, now: float) -> None:
        """Close connections that have waited too long, and ask for the next tick."""
        limit_s = self._limits.handshake_s
        while self._guests and (oldest := next(iter(self._guests))).since + limit_s <= now:
            self._counters.refuse("handshake-deadline")
            self._drop(oldest)
        if self._guests:
            self._loop.wake_at(next(iter(self._guests)).since + limit_s)

    def close(self) -> None:
        """Close the listening socket and all connections that were not taken."""
        self._loop.unwatch([self._source])
        self._socket.close()
        while self._guests:
            self._drop(next(iter(self._guests)))

    def _accept(self) -> bool:
        try:
            socket, _ = self._socket.accept()
        except OSError:  # no connection waits, or no descriptor is free now
            return False
        socket.setblocking(False)
        guest = _Guest(socket, self._loop.now(), self._greet)
        self._guests[guest] = None
        self._loop.watch([guest.source])
        if len(self._guests) > self._limits.max_unproven:
            self._counters.refuse("too-many-unproven")
            self._drop(next(iter(self._guests)))
        self._loop.wake_at(guest.since + self._limits.handshake_s)
        return True

    def _greet(self, guest: _Guest) -> bool:
        """Read the name of a connection; answer if it was offered, otherwise close the connection."""
        try:
            got = guest.socket.recv(NONCE_NBYTES - len(guest.name))
        except BlockingIOError:
            return False
        except OSError:
            got = b""
        guest.name += got
        if got and len(guest.name) < NONCE_NBYTES:
            return False
        if guest.name not in self._offered:
            self._counters.refuse("stream-name")
            self._drop(guest)
            return False
        answer = self._offered.pop(guest.name)
        self._loop.unwatch([guest.source])  # all other bytes are for the session
        with contextlib.suppress(OSError):
            guest.socket.send(answer)
        return False

    def _forget(self, guest: _Guest) -> None:
        del self._guests[guest]
        self._loop.unwatch([guest.source])
        guest.source.forget()

    def _drop(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.socket.close()
