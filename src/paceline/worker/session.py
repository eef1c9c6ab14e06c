"""A worker's conversation: one port, one core, and blocking waits that always end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec

from paceline.core.effects import Send
from paceline.core.worker import Fill, WorkerCore, WorkerState
from paceline.errors import (
    ClusterLostError,
    DeadlineError,
    JobFailedError,
    JobStoppedError,
    PeerLostError,
    PeerUnknownError,
    RefusedFrameError,
    UsageError,
)
from paceline.messages import Abort, Message, Prepared, Push, Refused, Register, Welcome
from paceline.transport.base import Delivery, PeerDown, PeerUp, Port, Received
from paceline.types import COORDINATOR, NodeId, Placement
from paceline.wire.codec import decode, encode

Reply = TypeVar("Reply", bound=Message)
_POLL_S = 0.2


class Session:
    """Everything a worker says and hears goes through here. Not thread-safe.

    `silent_s` tells for how long the coordinator has been silent (0 where it lives in this process); a wait ends with
    a named error once that exceeds `timeout_s`, and with the job's own error once the job has failed.
    """

    def __init__(
        self,
        port: Port,
        introduction: Register,
        *,
        timeout_s: float,
        silent_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.port = port
        self.core = WorkerCore(introduction)
        self.timeout_s = timeout_s
        self.silent_s = silent_s
        self.on_fill: Callable[[Fill], None] = lambda fill: None
        self.on_push: Callable[[Push, Delivery], None] = lambda push, delivery: None
        self.coordinator: NodeId | None = None
        self._up: set[NodeId] = set()
        self._refused: str | None = None
        self._next_tick = 0.0
        self._awaiting: int | None = None
        self._reply: Message | None = None

    # ------------------------------------------------------------ connecting

    def open(self, address: str) -> Welcome:
        """Find the coordinator and register."""
        self.port.connect(address)
        self._wait(lambda: self.coordinator is not None, f"handshake at {address}")
        return self.ask(self._introduction, Welcome)

    def place(self, prepared: Prepared) -> None:
        """Connect to the servers that hold the blocks."""
        self.core.place(prepared)
        placement = prepared.placement
        for address in placement.addresses.values():
            self.port.connect(address)
        self._wait(lambda: self._up.issuperset(self.core.mine), lambda: self._missing(placement))

    def _missing(self, placement: Placement) -> str:
        missing = sorted(set(self.core.mine) - self._up)
        return "handshake with " + ", ".join(f"{s} at {placement.addresses[s]}" for s in missing)

    # ------------------------------------------------------------ requests

    def ask(self, make: Callable[[int], Message], expect: type[Reply]) -> Reply:
        """Send a request and wait for its reply, however long the coordinator lives and works on it.

        A worker that was taken for lost meanwhile registers again and asks anew.
        """
        while True:
            reply = self._exchange(make(self.core.next_req()), expect.__name__.lower())
            if isinstance(reply, Refused) and reply.rule == "unknown" and expect is not Welcome:
                self._exchange(self._introduction(self.core.next_req()), "welcome")
                continue
            if isinstance(reply, Refused):
                raise UsageError(f"refused ({reply.rule}): {reply.detail}")
            assert isinstance(reply, expect), f"asked for {expect.__name__}, got {reply}"
            return reply

    def _introduction(self, req: int) -> Register:
        return msgspec.structs.replace(self.core.introduction, req=req)

    def _exchange(self, message: Message, awaited: str) -> Message:
        try:
            decode(encode(message))
        except RefusedFrameError as error:
            # The other side could not read it, and would never answer.
            raise UsageError(f"{type(message).__name__} cannot be sent: {error.detail}") from None
        self._awaiting, self._reply = getattr(message, "req"), None  # noqa: B009 - every request has one
        again = 0.0
        try:
            while self._reply is None:
                now = time.monotonic()
                if now >= again:
                    again = now + self.core.resend_s
                    self._send_all([Send(COORDINATOR, message)])
                self._step(awaited)
        finally:
            self._awaiting = None
        return self._reply

    def run(self, sends: Sequence[Send], states: frozenset[WorkerState], awaited: str) -> WorkerState:
        """Send, then wait until the core is in one of `states`."""
        self._send_all(sends)
        self._wait(lambda: self.core.state in states, awaited)
        return self.core.state

    def say(self, sends: Sequence[Send]) -> None:
        """Send without waiting."""
        self._send_all(sends)

    def _wait(self, done: Callable[[], bool], awaited: str | Callable[[], str]) -> None:
        while not done():
            self._step(awaited)

    def _step(self, awaited: str | Callable[[], str]) -> None:
        """One event, or the end of this worker's patience."""
        event = self.port.recv(_POLL_S)
        now = time.monotonic()
        match event:
            case Received(peer=peer, message=message, frames=frames):
                self._received(peer, message, frames, now)
            case PeerUp(peer=peer):
                self._up.add(peer)
                if self.coordinator is None or peer.split("/")[0] == COORDINATOR:
                    self.coordinator = peer
            case PeerDown(peer=peer, reason=reason):
                self._up.discard(peer)
                self._refused = f"{peer}: {reason}"
            case None:
                silent = self.silent_s()
                if silent > self.timeout_s:
                    what = awaited if isinstance(awaited, str) else awaited()
                    if self._refused:
                        what += f" ({self._refused})"
                    raise DeadlineError(COORDINATOR, what, silent, self._step_number())
        if event is None or now >= self._next_tick:
            self._next_tick = now + _POLL_S
            self._send_all(self.core.tick(now))
        self._check()

    def _received(self, peer: NodeId, message: Message, frames: Sequence[memoryview], now: float) -> None:
        if self._awaiting is not None and getattr(message, "req", None) == self._awaiting and peer == self.coordinator:
            self._reply = message
            return
        sender = COORDINATOR if peer == self.coordinator else peer
        for effect in self.core.handle(sender, message, frames, now):
            if isinstance(effect, Fill):
                self.on_fill(effect)
            else:
                self._send_all([effect])

    def _step_number(self) -> int | None:
        return cast(int | None, getattr(self.core.task, "step", None))

    def _send_all(self, sends: Sequence[Send]) -> None:
        for send in sends:
            to = self.coordinator if send.to == COORDINATOR else send.to
            if to is None:
                continue
            try:
                delivery = self.port.send(to, send.message, cast(Sequence[memoryview], send.payload))
            except (PeerUnknownError, PeerLostError):
                continue  # the core says it again; if the peer is gone for good, the coordinator ends the job
            if isinstance(send.message, Push) and send.payload:
                self.on_push(send.message, delivery)

    def _check(self) -> None:
        if self.core.abort is not None:
            raise error_of(self.core.abort)


def error_of(abort: Abort) -> Exception:
    """The exception for an end of the job that the coordinator announced."""
    if abort.kind == "script":
        return JobFailedError(abort.reason, abort.trace) if abort.trace else UsageError(abort.reason)
    if abort.kind == "lost":
        return ClusterLostError(abort.reason)
    return JobStoppedError(abort.reason)
