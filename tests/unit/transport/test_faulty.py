"""Faults fire as planned, are counted, and are the same for the same seed."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from tests.contract.port_contract import block_bytes, push

from paceline.errors import PeerUnknownError
from paceline.messages import Message, Ok, PushAck, Shutdown
from paceline.testing.faulty import FaultPlan, FaultyPort
from paceline.transport.base import PeerDown, PeerUp, Received
from paceline.transport.inproc import InprocHub, InprocPort


def join(plan: FaultPlan) -> tuple[InprocPort, FaultyPort]:
    hub = InprocHub()
    server, client = hub.port("server/1", listen="server"), FaultyPort(hub.port("worker/1"), plan)
    client.connect("inproc://server")
    assert isinstance(server.recv(0), PeerUp)
    assert isinstance(client.recv(0), PeerUp)
    return server, client


def messages_at(port: InprocPort | FaultyPort) -> list[Message]:
    found = []
    while (event := port.recv(0)) is not None:
        assert isinstance(event, Received)
        found.append(event.message)
    return found


def test_a_duplicate_is_a_second_identical_send() -> None:
    server, client = join(FaultPlan(duplicate={"Push": 1.0}))
    frames = [block_bytes(100)]
    delivery = client.send("server/1", push(1, frames), frames)
    first, second = server.recv(0), server.recv(0)
    assert isinstance(first, Received)
    assert isinstance(second, Received)
    assert first.message == second.message == push(1, frames)
    assert bytes(first.frames[0]) == bytes(second.frames[0]) == bytes(frames[0])
    assert client.fired == {"duplicate:Push": 1}
    assert client.counters.sent_messages == 2
    del first
    assert not delivery.done
    del second
    assert delivery.done


def test_a_dropped_message_is_never_sent() -> None:
    server, client = join(FaultPlan(drop={"Ok": 1.0}, duplicate={"Ok": 1.0}))
    assert client.send("server/1", Ok(1)).done
    client.send("server/1", PushAck(2, "held"))
    assert messages_at(server) == [PushAck(2, "held")]
    assert client.fired == {"drop:Ok": 1}


def test_a_delayed_message_arrives_after_messages_that_were_sent_later() -> None:
    server, client = join(FaultPlan(delay={"Push": (1.0, 0.05)}, duplicate={"Push": 1.0}))
    frames = [block_bytes(100)]
    delivery = client.send("server/1", push(1, frames), frames)
    assert not delivery.done
    client.send("server/1", Ok(2))
    assert messages_at(server) == [Ok(2)]
    before = time.monotonic()
    assert client.recv(0.2) is None
    assert 0.199 <= time.monotonic() - before < 2.0
    assert messages_at(server) == [push(1, frames)] * 2
    assert delivery.done
    assert client.fired == {"duplicate:Push": 1, "delay:Push": 1}


def test_a_late_message_is_lost_if_its_session_has_ended() -> None:
    server, client = join(FaultPlan(delay={"Ok": (1.0, 0.02)}))
    delivery = client.send("server/1", Ok(1))
    server.close()
    assert isinstance(client.recv(0.1), PeerDown)
    assert client.recv(0.05) is None
    assert delivery.done
    assert client.fired == {"delay:Ok": 1, "late-lost": 1}
    with pytest.raises(PeerUnknownError):
        client.send("server/1", PushAck(1, "held"))


def test_received_messages_can_be_lost_doubled_or_late() -> None:
    plan = FaultPlan(recv_drop={"Ok": 1.0}, recv_duplicate={"PushAck": 1.0}, recv_delay={"Shutdown": (1.0, 0.05)})
    server, client = join(plan)

    server.send("worker/1", Shutdown(1, "end"))
    server.send("worker/1", Ok(2))
    server.send("worker/1", PushAck(3, "held"))
    assert messages_at(client) == [PushAck(3, "held")] * 2
    assert client.recv(1.0) == Received("server/1", Shutdown(1, "end"))
    assert client.fired == {"recv_drop:Ok": 1, "recv_duplicate:PushAck": 1, "recv_delay:Shutdown": 1}


def test_peer_down_comes_after_the_late_messages_of_the_peer() -> None:
    server, client = join(FaultPlan(recv_delay={"Ok": (1.0, 60.0)}))
    server.send("worker/1", Ok(1))
    server.close()
    assert client.recv(1.0) == Received("server/1", Ok(1))
    assert isinstance(client.recv(1.0), PeerDown)


def test_the_same_seed_gives_the_same_faults_at_the_planned_rate() -> None:
    def run(seed: int | str) -> tuple[list[Message], dict[str, int]]:
        server, client = join(FaultPlan(seed=seed, duplicate={"Ok": 0.1}, drop={"Ok": 0.2}))
        got: list[Message] = []
        for req in range(2000):
            client.send("server/1", Ok(req))
            got += messages_at(server)
        return got, client.fired

    assert run(7) == run(7)
    assert run("7 worker-0") == run("7 worker-0")
    assert run(7) != run(8)
    fired = run(7)[1]
    assert 300 < fired["drop:Ok"] < 500
    assert 100 < fired["duplicate:Ok"] < 220


def test_a_plan_can_be_written_as_json() -> None:
    plan = FaultPlan(seed=3, duplicate={"Push": 0.1}, drop={"PushAck": 0.1}, delay={"Push": (0.05, 0.02)})
    assert FaultPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert FaultPlan.from_dict({}) == FaultPlan()


@pytest.mark.parametrize(
    "plan",
    [{"drop": {"Ok": 2}}, {"delay": {"Ok": [0.5, -1]}}, {"lose": {"Ok": 1}}, {"drop": {"Ok": "often"}}],
)
def test_an_invalid_plan_is_refused(plan: dict[str, object]) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        FaultPlan.from_dict(plan)
