"""Turns that end after a partial push, injected at a worker's port."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.messages import Message, Push, Refused
from paceline.transport.base import Delivery, Event, Frame, Port, Received
from paceline.types import Fence


class _Lost:
    """The delivery of a push that was never sent."""

    done = True


class PartialPort:
    """A `Port` on which some turns reach one server only.

    An abandoned turn: the first server gets its part, and what was meant for the others comes back as refused, so
    that the worker gives the slot back. A fatal one: the first server gets its part, and the process is killed.
    """

    def __init__(self, inner: Port, seed: str, abandon: float, die_at: int) -> None:
        self._inner: Any = inner
        self._random = random.Random(seed)
        self._abandon = abandon
        self._die_at = die_at
        self._died = Path("died")
        self._fence: Fence | None = None
        self._abandoned: set[Fence] = set()
        self._replies: deque[Event] = deque()
        self._seen: set[int] = set()
        self.abandoned = self.retried = self.turns = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, peer: str, message: Message, frames: Sequence[Frame] = (), *, later: bool = False) -> Delivery:
        if not isinstance(message, Push) or message.step < 0:
            return self._inner.send(peer, message, frames, later=later)  # type: ignore[no-any-return]
        if message.req in self._seen:
            self.retried += 1
        self._seen.add(message.req)
        if message.fence in self._abandoned:
            self._replies.append(Received(peer, Refused(message.req, "fault", "planned")))
            return _Lost()
        first = message.fence != self._fence
        if first:
            self._fence = message.fence
            self.turns += 1
            if self._random.random() < self._abandon:
                self._abandoned.add(message.fence)
                self.abandoned += 1
        delivery: Delivery = self._inner.send(peer, message, frames, later=later)
        if first and self.turns == self._die_at and not self._died.exists():
            self._died.touch()  # only once, since the engine restarts the worker
            time.sleep(0.1)  # the port sends in the background
            os.kill(os.getpid(), signal.SIGKILL)
        return delivery

    def recv(self, timeout_s: float) -> Event | None:
        if self._replies:
            return self._replies.popleft()
        event: Event | None = self._inner.recv(timeout_s)
        return event
