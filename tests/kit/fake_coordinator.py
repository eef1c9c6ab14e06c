"""A coordinator for tests: a real port in a thread, which answers with a given function."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from paceline.messages import (
    Drain,
    Exited,
    Finish,
    HostLost,
    Message,
    Ok,
    Scale,
    StatusReply,
    StatusRequest,
    Stop,
    Summary,
)
from paceline.transport.base import Received
from paceline.transport.zmq.port import ZmqPort

TOKEN = bytes(range(32))
Answer = Callable[[Message], Message | None]


class FakeCoordinator:
    """A coordinator that listens on `port` (0: any) until it is closed. `heard` has the messages that arrived."""

    def __init__(self, answer: Answer, port: int = 0, node: str | None = None) -> None:
        self.node = node or f"coordinator/{secrets.token_hex(4)}"
        self.heard: list[Message] = []
        self._answer = answer
        self._port = ZmqPort(self.node, TOKEN, listen="127.0.0.1", port=port)
        assert self._port.address is not None
        self.address = self._port.address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            event = self._port.recv(0.02)
            if isinstance(event, Received):
                self.heard.append(event.message)
                reply = self._answer(event.message)
                if reply is not None:
                    self._port.send(event.peer, reply)
        self._port.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)


@contextmanager
def fake_coordinator(answer: Answer, port: int = 0, node: str | None = None) -> Iterator[FakeCoordinator]:
    opened = FakeCoordinator(answer, port, node)
    try:
        yield opened
    finally:
        opened.close()


def answer_all(status: Mapping[str, object]) -> Answer:
    """Answers every request of an observer; `status` is the status and the summary."""

    def answer(message: Message) -> Message | None:
        document = json.dumps(status).encode()
        match message:
            case StatusRequest(req=req):
                return StatusReply(req, document)
            case Finish(req=req):
                return Summary(req, document)
            case Exited(req=req) | HostLost(req=req) | Drain(req=req) | Scale(req=req) | Stop(req=req):
                return Ok(req)
        return None

    return answer


def answer_nothing(_: Message) -> Message | None:
    """Answers nothing."""
    return None
