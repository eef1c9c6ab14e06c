"""The loop of a role: one wait for each event, and ticks also under load."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from paceline.runtime import service_loop
from paceline.runtime.service_loop import serve
from paceline.transport.base import Event, PeerUp
from paceline.transport.inproc import InprocHub, InprocPort


class _Service:
    def __init__(self, events: int) -> None:
        self.ended: str | None = None
        self.left = events
        self.ticks: list[int] = []

    def on_event(self, event: Event, now: float) -> None:
        self.left -= 1
        if self.left <= 0:
            self.ended = "done"

    def on_tick(self, now: float) -> None:
        self.ticks.append(self.left)


class _Port(InprocPort):
    """A port that always has an event; it notes how long the loop would wait."""

    def __init__(self) -> None:
        super().__init__(InprocHub(), "service")
        self.waits: list[float] = []

    def recv(self, timeout_s: float) -> Event | None:
        self.waits.append(timeout_s)
        return PeerUp("peer")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_the_loop_asks_the_port_once_for_each_event() -> None:
    service, port = _Service(100), _Port()
    assert serve(service, port) == "done"
    assert len(port.waits) == 100
    assert all(wait > 0 for wait in port.waits), "no look at the port that does not wait"


def test_a_port_that_always_has_events_does_not_put_off_the_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_loop, "_TICK_S", 0.0)
    service = _Service(1_000)
    serve(service, _Port())
    assert len(service.ticks) == 3, "one after each burst of events"
