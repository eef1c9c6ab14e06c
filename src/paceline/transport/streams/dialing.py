"""The connecting end of streams over TCP: connects to the port of an offer without waiting."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket as sockets
from collections.abc import Callable

from paceline.transport.loop import Loop, Source
from paceline.wire.handshake import StreamOffer

CONNECT_S = 1.5
"""How many seconds the port of the offer may take to answer. A firewall that drops packets takes for ever."""


class StreamDial:
    """One attempt. It calls `on_ready` with the connection, or `on_failed` with the reason; not both, and once."""

    def __init__(
        self,
        loop: Loop,
        host: str,
        offer: StreamOffer,
        answer: bytes,
        on_ready: Callable[[sockets.socket], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """Prepare to connect. `host` is the host that the peer was reached at; a name is not resolved again.

        The listener must send `answer`; until then, it gets nothing but the name of the connection.
        """
        self._loop = loop
        self._offer = offer
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._connected = False
        self._missing = answer
        self._address = (host if _is_address(host) else offer.host, offer.port)
        self._socket = sockets.socket(sockets.AF_INET6 if ":" in self._address[0] else sockets.AF_INET)
        self._socket.setblocking(False)
        self._source = Source(self._socket.fileno(), self._read, self._write)

    def start(self) -> None:
        """Connect. The outcome may be reported before this returns."""
        error = self._socket.connect_ex(self._address)
        self._loop.watch([self._source])
        if error not in (0, errno.EINPROGRESS):
            self._fail(os.strerror(error))
            return
        self._loop.want_write(self._source, True)

    def cancel(self) -> None:
        """Close the connection and report nothing."""
        self._loop.unwatch([self._source])
        self._source.forget()
        self._socket.close()

    def time_is_over(self) -> None:
        """Report that the port of the offer did not answer in time."""
        self._fail(f"no answer for {CONNECT_S} s")

    def _write(self) -> None:
        self._loop.want_write(self._source, False)
        error = self._socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_ERROR)
        if error:
            self._fail(os.strerror(error))
            return
        try:
            self._socket.send(self._offer.nonce)
        except OSError as failure:
            self._fail(str(failure))
            return
        self._connected = True

    def _read(self) -> bool:
        if not self._connected:
            return False
        try:
            answer = self._socket.recv(len(self._missing))
        except BlockingIOError:
            return False
        except OSError as failure:
            self._fail(str(failure))
            return False
        if not answer or not secrets.compare_digest(answer, self._missing[: len(answer)]):
            self._fail("another answer than that of the peer" if answer else "the peer closed the connection")
            return False
        self._missing = self._missing[len(answer) :]
        if self._missing:
            return False
        self._loop.unwatch([self._source])
        self._source.forget()
        self._on_ready(self._socket)
        return False

    def _fail(self, reason: str) -> None:
        self.cancel()
        self._on_failed(f"port {self._address[1]} of {self._address[0]}: {reason}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
