"""How two processes of one host get a socket between them.

The listening process has a unix socket with an abstract name: no file, so nothing to clean up. It offers that name and
a one-time secret to a peer over a proven connection (`LocalListener.offer`); the peer connects there and sends the
secret (`connect`); the listener finds that socket by the secret (`LocalListener.take`). Any process of the host can
connect, but only a process of the same user that sends the secret is taken.
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
    """The two processes cannot have a local link; the message says why. Their session goes by TCP instead."""


def host_name() -> str:
    """This boot of this host, and the network namespace in which abstract names are known.

    Raises:
        LocalLaneError: the system does not tell.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError as error:
        raise LocalLaneError(f"this host cannot be named: {error}") from None


def peer_process(socket: sockets.socket) -> PeerProcess:
    """The process at the other end of `socket`.

    Raises:
        LocalLaneError: it runs as another user, or cannot be watched from here.
    """
    raw = socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise LocalLaneError(f"it runs as user {uid}, this process as {os.geteuid()}")
    if pid <= 0:
        raise LocalLaneError("it is in another process namespace")
    try:
        return PeerProcess(pid)
    except OSError as error:
        raise LocalLaneError(f"its process cannot be watched: {error}") from None


def connect(offer: Offer) -> tuple[sockets.socket, PeerProcess]:
    """A socket to the process that made the offer, and that process.

    Raises:
        LocalLaneError: it is on another host, or its socket cannot be used.
    """
    if offer.host != host_name():
        raise LocalLaneError("it is on another host")
    socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        socket.setblocking(False)
        socket.connect(f"\0{offer.name}")
        process = peer_process(socket)
        if socket.send(offer.nonce) != len(offer.nonce):
            raise LocalLaneError("its socket takes no bytes")
    except OSError as error:
        socket.close()
        raise LocalLaneError(f"its socket cannot be reached: {error}") from None
    except LocalLaneError:
        socket.close()
        raise
    return socket, process


class LocalListener:
    """The listening side. A connection that is not taken in time is closed; when there are too many, the oldest is."""

    def __init__(self, loop: Loop, limits: LinkLimits) -> None:
        """Listen under a random name.

        Raises:
            LocalLaneError: this system has no such sockets.
        """
        self.host = host_name()
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
            raise LocalLaneError(f"no local socket: {error}") from None
        self._source = Source(self._socket.fileno(), self._accept)
        loop.watch([self._source])

    def offer(self) -> Offer:
        """An offer for one peer."""
        return Offer(self.host, self.name, secrets.token_bytes(NONCE_NBYTES))

    def take(self, nonce: bytes) -> tuple[sockets.socket, PeerProcess]:
        """The socket on which the secret `nonce` came, and its process. The peer sends it before it chooses the lane.

        Raises:
            LocalLaneError: the secret has not come.
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
        raise LocalLaneError("the peer did not connect to the local socket")

    def tick(self, now: float) -> None:
        """Close connections that have waited too long, and ask for the next tick."""
        limit_s = self._limits.handshake_s
        while self._waiting and self._waiting[0][0] + limit_s <= now:
            self._waiting.popleft()[1].close()
        if self._waiting:
            self._loop.wake_at(self._waiting[0][0] + limit_s)

    def close(self) -> None:
        """Close the socket and all connections that wait."""
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
