"""Strangers: processes without the token that make a listening role hold as much memory as it will.

Each connects, sends a ZMTP greeting, declares a long command of ZeroMQ's own handshake, and sends all but its end:
the role can check nothing before the command is complete.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from paceline.transport.zmq.port import is_loopback
from paceline.wire.slices import OVERHEAD_NBYTES, SLICE_NBYTES

LARGEST_NBYTES = SLICE_NBYTES + OVERHEAD_NBYTES
"""The longest command that a listener of Paceline accepts from a stranger."""

_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_LONG_COMMAND = 0x06
_ZEROS = bytes(1 << 16)
_REFUSED_NBYTES = 64 << 20


class Stranger:
    """One connection to the listener at `host` and `port`: declares a command of `declared` bytes and never ends it."""

    def __init__(self, host: str, port: int, declared: int = LARGEST_NBYTES, *, encrypted: bool | None = None) -> None:
        """Connect, and queue the greeting. `encrypted` None: the listener encrypts unless `host` is a loopback address.

        Raises:
            OSError: nobody listens there.
        """
        encrypted = not is_loopback(host) if encrypted is None else encrypted
        mechanism = b"CURVE" if encrypted else b"PLAIN"
        self._socket = socket.create_connection((host, port), timeout=5.0)
        self._socket.setblocking(False)
        greeting = _SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)
        self._head = greeting + struct.pack("!BQ", _LONG_COMMAND, declared)
        self._left = declared - 1
        self.closed = False
        """Whether the listener has ended the connection."""

    def pour(self) -> bool:
        """Send what the listener takes without waiting; False if there is nothing left to send."""
        if self.closed:
            return False
        try:
            while self._head:
                self._head = self._head[self._socket.send(self._head) :]
            while self._left:
                self._left -= self._socket.send(memoryview(_ZEROS)[: self._left])
            self.closed = not self._alive()
        except BlockingIOError:
            return True
        except OSError:
            self.closed = True
        return False

    def _alive(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            while answer := self._socket.recv(1 << 16):
                del answer
            return False
        return True

    def fileno(self) -> int:
        """The descriptor of the connection."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Strangers:
    """`number` strangers, in turn at each of the (host, port) in `ports`.

    Every second one declares as much as is allowed, the others 64 MiB.
    """

    def __init__(self, ports: Sequence[tuple[str, int]], number: int, *, encrypted: bool | None = None) -> None:
        """Connect all of them.

        Raises:
            OSError: nobody listens at one of the ports.
        """
        self._all: list[Stranger] = []
        try:
            for i in range(number):
                declared = (LARGEST_NBYTES, _REFUSED_NBYTES)[i // len(ports) % 2]
                self._all.append(Stranger(*ports[i % len(ports)], declared, encrypted=encrypted))
        except OSError:
            self.close()
            raise

    @property
    def held(self) -> int:
        """How many of them the listeners have not turned away."""
        return sum(not stranger.closed for stranger in self._all)

    def pour(self, timeout_s: float) -> bool:
        """Send the bytes that the listeners take, for `timeout_s` at most; True once there is nothing left to send."""
        deadline = time.monotonic() + timeout_s
        left = list(self._all)
        while left and time.monotonic() < deadline:
            left = [stranger for stranger in left if stranger.pour()]
            if left:
                select.select([], [stranger.fileno() for stranger in left], [], 0.05)
        return not left

    def close(self) -> None:
        """Close all connections."""
        for stranger in self._all:
            stranger.close()
        self._all.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
