"""A port in a thread: it sends without waiting, and its heartbeats go on while the main thread is busy."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from paceline.engines import port_thread as module
from paceline.engines.port_thread import PortThread
from paceline.messages.hosts import AgentBeat, EndHost, SupervisorBeat
from paceline.transport.base import Event, PeerDown, PeerUp, Received
from paceline.transport.zmq.port import ZmqPort

TOKEN = bytes(range(32))
HERE, THERE = "supervisor/1", "agent/1"


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[PortThread, PortThread]]:
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    listening = ZmqPort(HERE, TOKEN, listen="127.0.0.1", local=False, one_port=True)
    dialing = ZmqPort(THERE, TOKEN, local=False, one_port=True)
    assert listening.address is not None
    dialing.connect(listening.address)
    here, there = PortThread(listening, "here"), PortThread(dialing, "there")
    assert isinstance(taken(there), PeerUp)
    assert isinstance(taken(here), PeerUp)
    yield here, there
    there.close()
    here.close()


def taken(port: PortThread, timeout_s: float = 5.0) -> Event | None:
    return port.take(timeout_s)


def test_a_message_arrives_and_a_port_without_events_returns_none(pair: tuple[PortThread, PortThread]) -> None:
    here, there = pair
    assert here.take(0.0) is None
    here.send(THERE, EndHost("over"))
    assert taken(there) == Received(HERE, EndHost("over"), ())
    here.send("agent/unknown", EndHost("nobody is there"))
    assert here.take(0.1) is None


def test_a_heartbeat_is_repeated_while_the_main_thread_does_something_else(pair: tuple[PortThread, PortThread]) -> None:
    here, there = pair
    there.beat(HERE, AgentBeat())
    assert [taken(here) for _ in range(3)] == [Received(THERE, AgentBeat(), ())] * 3
    there.beat(HERE, AgentBeat(True))
    while (event := taken(here)) == Received(THERE, AgentBeat(), ()):
        pass
    assert event == Received(THERE, AgentBeat(True), ())


def test_the_heartbeats_of_a_main_thread_that_hangs_end(
    pair: tuple[PortThread, PortThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    monkeypatch.setattr(module, "_HANGS_S", 0.15)
    there.beat(HERE, AgentBeat())
    deadline = time.monotonic() + 5.0
    while taken(here, 0.3) is not None:
        assert time.monotonic() < deadline, "the heartbeats go on"


def test_what_waits_is_sent_before_the_port_closes(pair: tuple[PortThread, PortThread]) -> None:
    here, there = pair
    for seen in range(50):
        here.send(THERE, SupervisorBeat("", seen))
    here.close()
    found = [taken(there) for _ in range(51)]
    assert [event.message.seen for event in found[:50]] == list(range(50))  # type: ignore[union-attr]
    assert isinstance(found[50], PeerDown)
