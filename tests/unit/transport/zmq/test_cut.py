"""A connection that is cut without a TCP reset: both ends report it, and get a session again after the cut."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest

from paceline.messages import Ok
from paceline.transport.base import Event, PeerDown, PeerUp, Received
from paceline.transport.limits import LinkLimits
from paceline.transport.zmq.port import ZmqPort

TOKEN = bytes(range(32))
LIMITS = LinkLimits(ping_s=0.1, quiet_s=0.3, handshake_s=0.5)
TO, FRO = 0, 1


class Wire:
    """Carries bytes between a port and its clients, in the directions that are not cut."""

    def __init__(self, target: str) -> None:
        self.cut: frozenset[int] = frozenset()
        self._target = urlsplit(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        ways: dict[socket.socket, tuple[socket.socket, int]] = {}
        while not self._stop:
            # Bytes of a cut direction stay in the socket, as TCP would hold them back.
            ready, _, _ = select.select(
                [self._listener, *(s for s, w in ways.items() if w[1] not in self.cut)], [], [], 0.01
            )
            for source in ready:
                if source is self._listener:
                    near = self._listener.accept()[0]
                    far = socket.create_connection((self._target.hostname, self._target.port))
                    ways[near], ways[far] = (far, TO), (near, FRO)
                    continue
                if source not in ways:
                    continue
                other = ways[source][0]
                try:
                    content = source.recv(1 << 16)
                    other.sendall(content)
                except OSError:
                    content = b""
                if not content:
                    for end in (source, other):
                        ways.pop(end, None)
                        end.close()
        for end in (self._listener, *ways):
            end.close()

    def close(self) -> None:
        self._stop = True
        self._thread.join(timeout=5.0)


@contextmanager
def pair(encrypt: bool = True) -> Iterator[tuple[ZmqPort, ZmqPort, Wire]]:
    """Two ports; the first reaches the second only through the wire."""
    with (
        closing(ZmqPort("a/1", TOKEN, limits=LIMITS, encrypt=encrypt, local=False)) as near,
        closing(ZmqPort("b/1", TOKEN, listen="127.0.0.1", limits=LIMITS, encrypt=encrypt, local=False)) as far,
    ):
        assert far.address is not None
        with closing(Wire(far.address)) as wire:
            near.connect(wire.address)
            until(near, far, lambda events: {PeerUp("a/1"), PeerUp("b/1", wire.address)} <= set(events))
            yield near, far, wire


def until(near: ZmqPort, far: ZmqPort, done: Callable[[list[Event]], bool], timeout_s: float = 10.0) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + timeout_s
    while not done(events):
        assert time.monotonic() < deadline, events
        events += [event for port in (near, far) if (event := port.recv(0.005)) is not None]
    return events


@pytest.mark.parametrize("cut", [{TO, FRO}, {TO}, {FRO}], ids=["both", "to", "fro"])
def test_both_ends_report_a_cut_and_get_a_session_again_after_it(cut: set[int]) -> None:
    with pair() as (near, far, wire):
        wire.cut = frozenset(cut)
        gone = until(near, far, lambda events: len([e for e in events if isinstance(e, PeerDown)]) >= 2, 5.0)
        assert {e.peer for e in gone if isinstance(e, PeerDown)} == {"a/1", "b/1"}
        wire.cut = frozenset()
        until(near, far, lambda events: len([e for e in events if isinstance(e, PeerUp)]) >= 2)
        near.send("b/1", Ok(7))
        until(near, far, lambda events: Received("a/1", Ok(7)) in events)


def test_an_idle_connection_is_not_reported_lost() -> None:
    with pair() as (near, far, _):
        quiet: list[Event] = []
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            quiet += [event for port in (near, far) if (event := port.recv(0.01)) is not None]
        assert quiet == []


def test_a_process_that_does_not_call_recv_is_not_reported_lost() -> None:
    """ZeroMQ's own thread answers pings: a worker may compute for any time."""
    with pair() as (near, far, _):
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert far.recv(0.01) is None
        assert near.recv(0.05) is None
