"""A port in a thread of its own, for processes whose other work may take seconds: its heartbeats go on meanwhile."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque

from paceline.core.hosts.agent import BEAT_S
from paceline.errors import TransportError
from paceline.messages.base import Message
from paceline.transport.base import Event
from paceline.transport.zmq.port import ZmqPort
from paceline.types import NodeId

_POLL_S = 0.02
_MAX_WAITING = 4000
_HANGS_S = 60.0


class PortThread:
    """Takes over `port`. `events` has what arrives; `send` does not wait.

    `beat` sets a message that is repeated to a peer: this shows that the process lives, also while its main thread
    starts a process. Without a new `beat` for a minute, the main thread hangs, and the repetition ends.
    """

    def __init__(self, port: ZmqPort, name: str) -> None:
        self._port = port
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()  # a signal cannot leave it locked
        self._outgoing: deque[tuple[NodeId, Message]] = deque()
        self._beats: dict[NodeId, tuple[Message, float]] = {}
        self._next_beat = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, peer: NodeId, message: Message) -> None:
        """Send a message to a peer. It is dropped if there is no session."""
        self._outgoing.append((peer, message))

    def beat(self, peer: NodeId, message: Message) -> None:
        """Repeat `message` to `peer` a few times a second, while there is a session and this method is called."""
        self._beats[peer] = message, time.monotonic() + _HANGS_S

    def take(self, timeout_s: float) -> Event | None:
        """The next event; None if none comes within `timeout_s`."""
        try:
            return self.events.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Send what waits, and close the port."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() or self._outgoing:
                self._repeat_beats()
                while self._outgoing:
                    self._send(*self._outgoing.popleft())
                event = self._port.recv(_POLL_S)
                while event is not None:
                    self._put(event)
                    event = None if self._closing.is_set() else self._port.recv(0.0)
        finally:
            self._port.close()

    def _repeat_beats(self) -> None:
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        for peer, (message, until) in list(self._beats.items()):
            if now > until or not self._send(peer, message):
                self._beats.pop(peer, None)

    def _send(self, peer: NodeId, message: Message) -> bool:
        with contextlib.suppress(TransportError):  # an event tells the main thread that the session has ended
            self._port.send(peer, message)
            return True
        return False

    def _put(self, event: Event) -> None:
        while self.events.qsize() >= _MAX_WAITING and not self._closing.is_set():
            time.sleep(_POLL_S)
        self.events.put(event)
