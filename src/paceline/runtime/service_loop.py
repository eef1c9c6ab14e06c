"""Runs a role's service on its port: a blocking poll, no event loop."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import time
from typing import Protocol

from paceline.clients.redial import Redial
from paceline.transport.base import Event, Port
from paceline.types import NodeId

_TICK_S = 0.1
_BURST = 256  # events handled before time is looked at


class Service(Protocol):
    """A role as the loop sees it."""

    ended: str | None

    def on_event(self, event: Event, now: float) -> None:
        """One event of the port."""
        ...

    def on_tick(self, now: float) -> None:
        """Time passes; the inbox is empty."""
        ...


def node_id(name: str, start: int) -> NodeId:
    """The identity of this process in its run, which no other process ever has: `name_of` and `pid_of` read it."""
    return f"{name}/{start}-{os.getpid()}-{secrets.token_hex(4)}"


def serve(service: Service, port: Port, redial: Redial | None = None) -> str:
    """Run until the service has ended or the process is told to; returns the reason.

    With `redial`, the port is kept on the coordinator.
    """
    told: list[str] = []

    def on_signal(number: int, _: object) -> None:
        told.append(signal.Signals(number).name)

    previous = {s: signal.signal(s, on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
    next_tick = 0.0
    gc.collect()
    gc.freeze()  # what was imported stays: looking through it again and again took a quarter of a server's time
    try:
        while service.ended is None and not told:
            event = port.recv(_TICK_S)
            burst = 0
            while event is not None:
                if redial is not None:
                    redial.note(event)
                service.on_event(event, time.monotonic())
                burst += 1
                event = port.recv(0) if burst <= _BURST else None
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + _TICK_S
                service.on_tick(now)
                if redial is not None:
                    redial.tick(now)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return service.ended or told[0]


def pump(service: Service, port: Port) -> bool:
    """Handle what is waiting, without waiting: how a role lives inside another's thread. True if there was anything."""
    busy = False
    while (event := port.recv(0)) is not None:
        busy = True
        service.on_event(event, time.monotonic())
    return busy
