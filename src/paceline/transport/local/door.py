"""How two processes of one host find a socket of their own: a listener's door, and who may come in by it.

The door is a unix socket with an abstract name: no file, so nothing to clean up. Anybody on the host may knock; in come
only processes of the same user that show the one-time secret which the listener gave them over a proven connection.
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
from paceline.transport.memory.loans import Witness
from paceline.wire.handshake import NONCE_NBYTES, Offer

_BACKLOG = 512
_CREDENTIALS = struct.Struct("=iII")


class LocalLaneError(TransportError):
    """The two processes cannot have a local link; the message says why."""


def host_name() -> str:
    """This boot of this host, and the network namespace in which abstract names are known.

    Raises:
        LocalLaneError: the system does not say.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError as error:
        raise LocalLaneError(f"this host cannot be named: {error}") from None


def watch_peer(socket: sockets.socket) -> Witness:
    """The process at the other end, watched.

    Raises:
        LocalLaneError: it is of another user, or cannot be seen from here.
    """
    raw = socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.geteuid():
        raise LocalLaneError(f"it runs as user {uid}, this process as {os.geteuid()}")
    if pid <= 0:
        raise LocalLaneError("it is in another process namespace")
    try:
        return Witness(pid)
    except OSError as error:
        raise LocalLaneError(f"its process cannot be watched: {error}") from None


def knock(offer: Offer) -> tuple[sockets.socket, Witness]:
    """A socket to the process that made the offer, which is watched from now on.

    Raises:
        LocalLaneError: it is not reachable this way.
    """
    if offer.host != host_name():
        raise LocalLaneError("it is on another host")
    socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        socket.setblocking(False)
        socket.connect(f"\0{offer.name}")
        witness = watch_peer(socket)
        if socket.send(offer.nonce) != len(offer.nonce):
            raise LocalLaneError("its socket takes nothing")
    except OSError as error:
        socket.close()
        raise LocalLaneError(f"its socket cannot be reached: {error}") from None
    except LocalLaneError:
        socket.close()
        raise
    return socket, witness


class Door:
    """The listening side. Those who are not asked for are sent away, the oldest first."""

    def __init__(self, loop: Loop, limits: LinkLimits) -> None:
        """Open a door under a random name.

        Raises:
            LocalLaneError: this system has no such sockets.
        """
        self.host = host_name()
        self.name = f"paceline-{secrets.token_hex(16)}"
        self._loop = loop
        self._limits = limits
        self._waiting: deque[tuple[float, sockets.socket, Witness]] = deque()
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
        """An offer for one client."""
        return Offer(self.host, self.name, secrets.token_bytes(NONCE_NBYTES))

    def take(self, nonce: bytes) -> tuple[sockets.socket, Witness]:
        """The socket whose owner has shown `nonce`, and its process; it knocked before it said so elsewhere.

        Raises:
            LocalLaneError: nobody has.
        """
        while self._accept():
            pass
        for entry in self._waiting:
            _, socket, witness = entry
            with contextlib.suppress(OSError):
                if secrets.compare_digest(socket.recv(NONCE_NBYTES, sockets.MSG_PEEK), nonce):
                    socket.recv(NONCE_NBYTES)
                    self._waiting.remove(entry)
                    return socket, witness
        raise LocalLaneError("nobody came in by the local socket")

    def tick(self, now: float) -> None:
        """Send away those who have waited too long, and ask for the next tick."""
        limit_s = self._limits.handshake_s
        while self._waiting and self._waiting[0][0] + limit_s <= now:
            self._waiting.popleft()[1].close()
        if self._waiting:
            self._loop.wake_at(self._waiting[0][0] + limit_s)

    def close(self) -> None:
        """Close the door, and send away those who wait."""
        self._loop.unwatch([self._source])
        self._socket.close()
        while self._waiting:
            self._waiting.popleft()[1].close()

    def _accept(self) -> bool:
        try:
            socket, _ = self._socket.accept()
        except OSError:  # nobody is there, or no descriptor is free just now
            return False
        socket.setblocking(False)
        try:
            witness = watch_peer(socket)
        except LocalLaneError:
            socket.close()
            return True
        now = self._loop.now()
        self._waiting.append((now, socket, witness))
        if len(self._waiting) > self._limits.max_unproven:
            self._waiting.popleft()[1].close()
        self._loop.wake_at(now + self._limits.handshake_s)
        return True
