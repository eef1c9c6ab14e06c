"""Connect two processes of one host by a unix socket.

The listening process has a unix socket with an abstract name: no file, so nothing to clean up. It offers that name and
a one-time secret to a peer over a proven connection (`LocalListener.offer`); the peer connects to that name and sends
the secret (`connect`); the listener finds the peer's socket by the secret (`LocalListener.take`). Any process of the
host can connect, but the listener accepts only a process of the same user that sends the secret.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket as sockets
import struct
from collections import deque

from paceline.errors import TransportError
from paceline.transport.limits import LinkLimits
from paceline.transport.loop import Loop, Source
from paceline.transport.memory.loans import PeerProcess
from paceline.wire.handshake import NONCE_NBYTES, Offer

_BACKLOG = 512
_CREDENTIALS = struct.Struct("=iII")


class LocalLaneError(TransportError):
    """The two processes cannot have a local link; the message says why. Their session uses TCP instead."""


def peer_process(socket: sockets.socket) -> PeerProcess:
    """The process at the other end of `socket`.

    Raises:
        LocalLaneError: that process runs as another user, or this process cannot watch it.
    """
    raw = socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise LocalLaneError(f"the peer runs as user {uid}, this process as user {os.geteuid()}")
    if pid <= 0:
        raise LocalLaneError("the peer is in another process namespace")
    try:
        return PeerProcess(pid)
    except OSError as error:
        raise LocalLaneError(f"this process cannot watch the peer's process: {error}") from None


def connect(offer: Offer) -> tuple[sockets.socket, PeerProcess]:
    """Connect to the process that made `offer`; returns the socket and that process.

    Nothing is assumed about where that process is: its socket has a random name, which only processes of the same host
    and network namespace find.

    Raises:
        LocalLaneError: that process is on another host, or its socket cannot be used.
    """
    socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        socket.setblocking(False)
        socket.connect(f"\0{offer.name}")
        process = peer_process(socket)
        if socket.send(offer.nonce) != len(offer.nonce):
            raise LocalLaneError("the peer's unix socket accepts no bytes")
    except ConnectionRefusedError:  # no socket of that name
        socket.close()
        raise LocalLaneError("the peer is on another host, or in another network namespace") from None
    except OSError as error:
        socket.close()
        raise LocalLaneError(f"cannot connect to the peer's unix socket: {error}") from None
    except LocalLaneError:
        socket.close()
        raise
    return socket, process


class LocalListener:
    """The listening side. It closes connections that `take` does not take in time, and the oldest if too many wait."""

    def __init__(self, loop: Loop, limits: LinkLimits) -> None:
        """Listen under a random name.

        Raises:
            LocalLaneError: this system has no unix sockets with abstract names.
        """
        self.name = f"paceline-{secrets.token_hex(16)}"
        self._loop = loop
        self._limits = limits
        self._waiting: deque[tuple[float, sockets.socket, PeerProcess]] = deque()
        try:
            self._socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.bind(f"\0{self.name}")
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise LocalLaneError(f"cannot open a unix socket with an abstract name: {error}") from None
        self._source = Source(self._socket.fileno(), self._accept)
        loop.watch([self._source])

    def offer(self) -> Offer:
        """Make an offer for one peer, with a new secret."""
        return Offer(self.name, secrets.token_bytes(NONCE_NBYTES))

    def take(self, nonce: bytes) -> tuple[sockets.socket, PeerProcess]:
        """The socket on which a peer sent the secret `nonce`, and the peer's process.

        The peer sends the secret before it chooses the lane, so call this after the choice.

        Raises:
            LocalLaneError: no connection has sent the secret.
        """
        while self._accept():
            pass
        for entry in self._waiting:
            _, socket, process = entry
            with contextlib.suppress(OSError):
                if secrets.compare_digest(socket.recv(NONCE_NBYTES, sockets.MSG_PEEK), nonce):
                    socket.recv(NONCE_NBYTES)
                    self._waiting.remove(entry)
                    return socket, process
        raise LocalLaneError("the peer did not connect to the unix socket of this process")

    def tick(self, now: float) -> None:
        """Close connections that have waited too long, and ask for the next tick."""
        limit_s = self._limits.handshake_s
        while self._waiting and self._waiting[0][0] + limit_s <= now:
            self._waiting.popleft()[1].close()
        if self._waiting:
            self._loop.wake_at(self._waiting[0][0] + limit_s)

    def close(self) -> None:
        """Close the listening socket and all connections that were not taken."""
        self._loop.unwatch([self._source])
        self._socket.close()
        while self._waiting:
            self._waiting.popleft()[1].close()

    def _accept(self) -> bool:
        try:
            socket, _ = self._socket.accept()
        except OSError:  # no connection waits, or no descriptor is free now
            return False
        socket.setblocking(False)
        try:
            process = peer_process(socket)
        except LocalLaneError:
            socket.close()
            return True
        now = self._loop.now()
        self._waiting.append((now, socket, process))
        if len(self._waiting) > self._limits.max_unproven:
            self._waiting.popleft()[1].close()
        self._loop.wake_at(now + self._limits.handshake_s)
        return True
