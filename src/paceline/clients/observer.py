"""Looks at a run from outside: the launcher, `paceline status`, tests."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from paceline.errors import DeadlineError, TransportError
from paceline.messages import Exited, Finish, Message, Ok, Shutdown, StatusReply, StatusRequest, Summary
from paceline.transport.base import PeerDown, PeerUp, Port, Received
from paceline.transport.zmq import ZmqPort
from paceline.types import NodeId

Reply = TypeVar("Reply", bound=Message)


class Observer:
    """A small client of the coordinator. Every call has a deadline. Not thread-safe."""

    def __init__(self, address: str, token: bytes) -> None:
        self._port: Port = ZmqPort(f"observer/{os.getpid()}-{secrets.token_hex(4)}", token)
        self._port.connect(address)
        self._peer: NodeId | None = None
        self._why = "no answer"
        self._req = 0

    def status(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """What the run is doing."""
        reply = self._ask(lambda req: StatusRequest(req), StatusReply, timeout_s)
        decoded: dict[str, Any] = msgspec.json.decode(reply.json)
        return decoded

    def exited(self, name: str, pid: int, code: int, timeout_s: float = 5.0) -> None:
        """A process of the run has ended."""
        self._ask(lambda req: Exited(req, name, pid, code), Ok, timeout_s)

    def finish(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Close the books; returns the summary."""
        reply = self._ask(lambda req: Finish(req), Summary, timeout_s)
        decoded: dict[str, Any] = msgspec.json.decode(reply.json)
        return decoded

    def shutdown(self, reason: str) -> None:
        """Tell the coordinator to end. No reply."""
        if self._peer is not None:
            self._port.send(self._peer, Shutdown(0, reason))

    def close(self) -> None:
        """End the session."""
        self._port.close()

    def _ask(self, make: Callable[[int], Message], expect: type[Reply], timeout_s: float) -> Reply:
        self._req += 1
        message, sent = make(self._req), False
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if self._peer is not None and not sent:
                try:
                    self._port.send(self._peer, message)
                    sent = True
                except TransportError as error:
                    self._peer, self._why = None, str(error)
            match self._port.recv(min(left, 0.2)):
                case PeerUp(peer=peer):
                    self._peer = peer
                case PeerDown(reason=reason):
                    self._peer, sent, self._why = None, False, reason
                case Received(message=reply) if isinstance(reply, expect) and reply.req == self._req:  # type: ignore[attr-defined]
                    return reply
        raise DeadlineError("coordinator", f"{expect.__name__.lower()} ({self._why})", timeout_s)
