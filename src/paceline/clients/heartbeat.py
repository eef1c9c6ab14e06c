"""The heartbeat: a thread that tells the coordinator that this process lives, while the main thread computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from paceline.clients.redial import Find, Redial
from paceline.core.running_time import RunningTime
from paceline.errors import TransportError
from paceline.messages import Beat, BeatAck
from paceline.transport.base import PeerUp, Port, Received
from paceline.types import NodeId


class Heartbeat:
    """A thread with its own port, which sends `Beat` to the coordinator every `interval_s` seconds.

    It gets the coordinator's address from `find_coordinator` at the start, and again whenever there is no session.
    """

    def __init__(
        self,
        make_port: Callable[[], Port],
        find_coordinator: Find,
        node: NodeId,
        interval_s: float,
    ) -> None:
        self._make_port = make_port
        self._find = find_coordinator
        self._node = node
        self._interval_s = interval_s
        self._running = RunningTime()
        self._heard = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def silent_s(self) -> float:
        """Seconds since the coordinator's last answer, without the time in which this process did not run."""
        return self._running.value - self._heard

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        port = self._make_port()
        redial = Redial(port, self._find)
        due = 0.0
        try:
            while not self._stop.is_set():
                now = time.monotonic()
                self._running.advance(now)
                redial.tick(now)
                if redial.peer is not None and now >= due:
                    due = now + self._interval_s
                    # If the session has just ended, `send` raises, and the next event reports the end.
                    with suppress(TransportError):
                        port.send(redial.peer, Beat(self._node))
                event = port.recv(min(0.1, self._interval_s / 2))
                redial.note(event)
                match event:
                    case PeerUp():
                        due = 0.0
                    case Received(message=BeatAck()):
                        self._heard = self._running.value
        finally:
            port.close()
