"""The observer: reads the status of a run and controls it from outside (engines, command line, tests)."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from paceline.clients.redial import Find, Redial
from paceline.errors import AuthenticationError, DeadlineError, TransportError, UsageError
from paceline.messages import (
    DialsSet,
    Drain,
    Exited,
    Finish,
    Message,
    Ok,
    Refused,
    Scale,
    SetDials,
    Shutdown,
    StatusReply,
    StatusRequest,
    Stop,
    Summary,
)
from paceline.messages.status import RunSummary, Status
from paceline.transport.base import PeerDown, Port, Received
from paceline.transport.zmq.port import ZmqPort
from paceline.types import DialChange, NodeId

Reply = TypeVar("Reply", bound=Message)

_UNSURE = "connection-handshake"  # another token, or a coordinator that is just closing: the next attempts tell
_ANSWERS: dict[type[Message], str] = {
    DialsSet: "say from which step on the dials hold",
    Ok: "accept the request",
    StatusReply: "report its status",
    Summary: "send the summary",
}
"""What the coordinator does with each reply, in the words of an error."""


class Observer:
    """A client of the coordinator at `where`: an address, or a function that finds it.

    Every call has a deadline. If another coordinator takes over, the request is sent again to it. Not thread-safe.

    A call raises DeadlineError if no coordinator answers in time, AuthenticationError if the process at the address has
    another token, TransportError if it refuses this one for another reason, and UsageError if it refuses the request.
    """

    def __init__(self, where: str | Find, token: bytes) -> None:
        self._port: Port = ZmqPort(
            f"observer/{os.getpid()}-{secrets.token_hex(4)}", token, insecure_blocks=None
        )  # it asks for no blocks
        self._redial = Redial(self._port, where if callable(where) else lambda: where)
        self._redial.tick(0.0)
        self._why = "no answer"
        self._req = 0
        self._message: Message | None = None
        self._sent_to: NodeId | None = None

    # ------------------------------------------------------------ requests

    def status(self, timeout_s: float = 5.0) -> Status:
        """The present status of the run."""
        return decode_status(self._ask(StatusRequest, StatusReply, timeout_s))

    def exited(self, name: str, start: int, code: int, timeout_s: float = 5.0) -> None:
        """Report that start number `start` of the process called `name` has ended with exit code `code`."""
        self._ask(lambda req: Exited(req, name, start, code), Ok, timeout_s)

    def scale(self, workers: int = 0, servers: int = 0, samplers: int = -1, timeout_s: float = 5.0) -> None:
        """Set how many workers and servers (0: no change) and samplers (-1: no change) the run shall have.

        Its launcher starts or ends processes.
        """
        self._ask(lambda req: Scale(req, workers, servers, samplers), Ok, timeout_s)

    def set_dials(self, change: DialChange, reason: str, timeout_s: float = 5.0) -> DialsSet:
        """Change dials of the run from the first step on that it can; returns that step, and what was changed."""
        return self._ask(lambda req: SetDials(req, change, reason=reason), DialsSet, timeout_s)

    def drain(self, host: str, *, undo: bool = False, timeout_s: float = 5.0) -> None:
        """Let the host `host` become empty, or with `undo` be used again; the status names the hosts that are empty."""
        self._ask(lambda req: Drain(req, host, undo), Ok, timeout_s)

    def stop(self, step: int, reason: str, *, at_once: bool = False, timeout_s: float = 5.0) -> None:
        """End the job after `step`, or with `at_once` at the last committed version."""
        self._ask(lambda req: Stop(req, reason, step, at_once), Ok, timeout_s)

    def finish(self, timeout_s: float = 120.0) -> RunSummary:
        """Let the coordinator complete the last checkpoint and compute the digest; returns the summary."""
        return decode_summary(self._ask(Finish, Summary, timeout_s))

    def shutdown(self, reason: str) -> None:
        """Tell the coordinator to end, without waiting for a reply."""
        if self._redial.peer is not None:
            self._port.send(self._redial.peer, Shutdown(0, reason))

    def close(self) -> None:
        """End the session."""
        self._port.close()

    def _ask(self, make: Callable[[int], Message], expect: type[Reply], timeout_s: float) -> Reply:
        self.post(make)
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            reply = self.poll(min(left, 0.1))
            if isinstance(reply, expect):
                return reply
            refused = self._redial.refused
            if refused is not None and refused.refused != _UNSURE:
                break
        if (refused := self._redial.refused) is not None:
            kind = AuthenticationError if refused.refused in ("token", _UNSURE) else TransportError
            raise kind(refused.reason)
        raise DeadlineError("coordinator", f"{_ANSWERS.get(expect, 'answer')} ({self._why})", timeout_s)

    # ------------------------------------------------------------ one request without waiting for its reply

    def post(self, make: Callable[[int], Message]) -> None:
        """Begin a request, which replaces the request before. `make` returns the message for a request number."""
        self._req += 1
        self._message, self._sent_to = make(self._req), None

    def poll(self, timeout_s: float) -> Message | None:
        """The reply to the posted request, if it comes within `timeout_s`; None otherwise.

        Raises:
            UsageError: the coordinator refuses the request.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            self._redial.tick(now)
            self._send()
            event = self._port.recv(max(0.0, min(deadline - now, 0.1)))
            self._redial.note(event)
            match event:
                case PeerDown(reason=reason):
                    self._why, self._sent_to = reason, None
                case Received(message=reply) if self._message is not None and getattr(reply, "req", None) == self._req:
                    self._message = None
                    if isinstance(reply, Refused):
                        raise UsageError(f"the run refuses the request: {reply.detail}")
                    return reply
                case None if time.monotonic() >= deadline:
                    return None

    def _send(self) -> None:
        peer = self._redial.peer
        if self._message is None or peer is None or peer == self._sent_to:
            return
        try:
            self._port.send(peer, self._message)
            self._sent_to = peer
        except TransportError as error:
            self._why = str(error)


def decode_status(reply: StatusReply) -> Status:
    """The status in a reply."""
    return msgspec.json.decode(reply.json, type=Status)


def decode_summary(reply: Summary) -> RunSummary:
    """The summary in a reply."""
    return msgspec.json.decode(reply.json, type=RunSummary)
