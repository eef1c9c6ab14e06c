"""Tells the coordinator that this process lives, while the main thread computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from paceline.errors import TransportError
from paceline.messages import Beat, BeatAck
from paceline.transport.base import PeerDown, PeerUp, Port, Received
from paceline.types import NodeId


class Heartbeat:
    """A thread with a port of its own. `silent_s` tells for how long the coordinator has not answered."""

    def __init__(
        self,
        make_port: Callable[[], Port],
        find_coordinator: Callable[[], str],
        node: NodeId,
        interval_s: float,
    ) -> None:
        self._make_port = make_port
        self._find = find_coordinator
        self._node = node
        self._interval_s = interval_s
        self._last = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def silent_s(self) -> float:
        """Seconds since the coordinator's last sign of life."""
        return time.monotonic() - self._last

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        port = self._make_port()
        peer: NodeId | None = None
        due = 0.0
        try:
            port.connect(self._find())
            while not self._stop.is_set():
                now = time.monotonic()
                if peer is not None and now >= due:
                    due = now + self._interval_s
                    try:
                        port.send(peer, Beat(self._node))
                    except TransportError:
                        peer = None
                match port.recv(min(0.1, self._interval_s / 2)):
                    case PeerUp(peer=up):
                        peer, due = up, 0.0
                    case PeerDown(peer=down) if down == peer:
                        peer = None
                    case Received(message=BeatAck()):
                        self._last = time.monotonic()
        finally:
            port.close()
