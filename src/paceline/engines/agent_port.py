"""The supervisor's port for agents, in a thread of its own: heartbeats do not wait for the supervisor's other work."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections import deque

from paceline.errors import TransportError, UsageError
from paceline.messages.base import Message
from paceline.transport.base import Event
from paceline.transport.zmq.port import ZmqPort
from paceline.types import NodeId

_POLL_S = 0.02
_MAX_WAITING = 4000


class AgentPort:
    """Accepts agents at an address. `events` has what arrives; `send` does not wait."""

    def __init__(self, token: bytes, address: str, port: int) -> None:
        """Listen at `address` and `port`.

        Raises:
            UsageError: this machine cannot listen there.
        """
        node = f"supervisor/{os.getpid()}-{secrets.token_hex(4)}"
        try:
            self._port = ZmqPort(node, token, listen=address, port=port, local=False)
        except (TransportError, ValueError) as error:
            raise UsageError(f"--listen {address}:{port}: {error}") from None
        self.events: queue.Queue[Event] = queue.Queue(_MAX_WAITING)
        self._outgoing: deque[tuple[NodeId, Message]] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agents", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The address at which agents find the supervisor."""
        assert self._port.address is not None
        return self._port.address

    def send(self, peer: NodeId, message: Message) -> None:
        """Send a message to an agent. It is dropped if there is no session: the agent enlists again."""
        self._outgoing.append((peer, message))

    def close(self) -> None:
        """Send what waits, and close the port."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() or self._outgoing:
                self._send_all()
                event = self._port.recv(_POLL_S)
                while event is not None:
                    self._put(event)
                    event = None if self._closing.is_set() else self._port.recv(0.0)
        finally:
            self._port.close()

    def _send_all(self) -> None:
        while self._outgoing:
            peer, message = self._outgoing.popleft()
            with contextlib.suppress(TransportError):
                self._port.send(peer, message)

    def _put(self, event: Event) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                self.events.put(event, timeout=_POLL_S)
                return
            time.sleep(0)
