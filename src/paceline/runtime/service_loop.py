"""Runs the service of a role: receives the events of its port and calls the service."""

from __future__ import annotations

import gc
import signal
import time
from typing import Protocol

from paceline.clients.redial import Redial
from paceline.transport.base import Event, Port

_TICK_S = 0.1  # seconds between two ticks
_BURST = 256  # the most events that are handled while a tick is due


class Service(Protocol):
    """What the loop calls. `ended` is the reason why the service has ended; None while it runs."""

    ended: str | None

    def on_event(self, event: Event, now: float) -> None:
        """Handle one event of the port."""
        ...

    def on_tick(self, now: float) -> None:
        """Do what is due by time; called about every 0.1 s."""
        ...


def serve(service: Service, port: Port, redial: Redial | None = None) -> str:
    """Run until the service has ended or the process gets SIGTERM or SIGINT; returns the reason.

    `redial` keeps the port connected to the coordinator.
    """
    signals: list[str] = []

    def on_signal(number: int, _: object) -> None:
        signals.append(signal.Signals(number).name)

    previous = {s: signal.signal(s, on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
    gc.collect()
    gc.freeze()  # garbage collection skips imported objects: to scan them took a quarter of a server's time
    try:
        now, burst = time.monotonic(), 0
        next_tick = now + _TICK_S
        while service.ended is None and not signals:
            # Until the next tick, each wait is for the next event. When the tick is due, the events that have come are
            # handled first: but only a burst of them.
            event = port.recv(max(0.0, next_tick - now)) if burst <= _BURST else None
            now = time.monotonic()
            if event is not None:
                burst += now >= next_tick
                if redial is not None:
                    redial.note(event)
                service.on_event(event, now)
            elif now >= next_tick:
                next_tick, burst = now + _TICK_S, 0
                service.on_tick(now)
                if redial is not None:
                    redial.tick(now)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return service.ended or signals[0]


def pump(service: Service, port: Port) -> bool:
    """Handle the events that have arrived, without waiting; True if there were any. For a role in another's thread."""
    busy = False
    while (event := port.recv(0)) is not None:
        busy = True
        service.on_event(event, time.monotonic())
    return busy
