"""The port within one process: it copies nothing, and it runs the pumps while it waits."""

from __future__ import annotations

import functools
import time

import pytest
from tests.contract.port_contract import block_bytes, push

from paceline.messages import BlockFrame, Ok, Push
from paceline.transport.base import PeerUp, Received
from paceline.transport.inproc import InprocHub, InprocPort
from paceline.types import Fence


def join(hub: InprocHub) -> tuple[InprocPort, InprocPort]:
    server, client = hub.port("server/1", listen="server"), hub.port("worker/1")
    client.connect("inproc://server")
    assert isinstance(server.recv(0), PeerUp)
    assert isinstance(client.recv(0), PeerUp)
    return server, client


def received(port: InprocPort) -> Received:
    event = port.recv(0)
    assert isinstance(event, Received)
    return event


def test_frames_are_not_copied() -> None:
    server, client = join(InprocHub())
    buffer = block_bytes(1000)
    client.send("server/1", push(1, [buffer]), [buffer])
    view = received(server).frames[0]
    buffer[7] = 99
    assert view[7] == 99


def test_a_slice_or_a_cast_keeps_a_delivery_open() -> None:
    server, client = join(InprocHub())
    buffer = block_bytes(1000)
    delivery = client.send("server/1", push(1, [buffer]), [buffer])
    assert not delivery.done
    event = received(server)
    kept = event.frames[0][10:20].cast("B")
    del event
    assert not delivery.done
    del kept
    assert delivery.done


def test_a_tensor_on_a_frame_keeps_a_delivery_open() -> None:
    torch = pytest.importorskip("torch")
    server, client = join(InprocHub())
    buffer = block_bytes(400)
    message = Push(1, 0, 0, 0, 0, Fence(1, 1), 0, (BlockFrame(0, "float32", 100),))
    delivery = client.send("server/1", message, [buffer])
    tensor = torch.frombuffer(received(server).frames[0], dtype=torch.float32)[5:50]
    assert not delivery.done
    del tensor
    assert delivery.done


def test_the_frames_of_unread_messages_are_dropped_when_the_receiver_closes() -> None:
    server, client = join(InprocHub())
    buffer = block_bytes(1000)
    delivery = client.send("server/1", push(1, [buffer]), [buffer])
    server.close()
    assert delivery.done


def test_the_delivery_of_a_read_only_buffer_is_done_at_once() -> None:
    server, client = join(InprocHub())
    frames = [memoryview(bytes(100))]
    assert client.send("server/1", push(1, frames), frames).done
    assert received(server).frames[0].nbytes == 100


def test_two_ports_cannot_listen_under_one_name() -> None:
    hub = InprocHub()
    hub.port("server/1", listen="server")
    with pytest.raises(ValueError, match="in use"):
        hub.port("server/2", listen="server")


def test_a_waiting_port_runs_the_other_roles() -> None:
    hub = InprocHub()
    server, client = join(hub)
    calls = 0

    def serve() -> bool:
        nonlocal calls
        calls += 1
        event = server.recv(0.5)  # recv within a pump returns no event, so that there is no deadlock
        if not isinstance(event, Received):
            return False
        assert isinstance(event.message, Ok)
        server.send(event.peer, Ok(event.message.req + 1))
        return True

    hub.add_pump(serve)
    client.send("server/1", Ok(1))
    before = time.monotonic()
    event = client.recv(5.0)
    assert event == Received("server/1", Ok(2))
    assert client.recv(0.05) is None
    assert time.monotonic() - before < 1.0
    assert calls > 2
    hub.remove_pump(serve)
    seen = calls
    assert client.recv(0) is None
    assert calls == seen


def test_pumps_run_until_none_makes_progress() -> None:
    """A message that takes many hops between roles arrives within one `recv`."""
    hub = InprocHub()
    nodes = [hub.port(f"node/{i}", listen=str(i)) for i in range(4)]
    for i, node in enumerate(nodes):
        node.connect(f"inproc://{(i + 1) % 4}")
        while node.recv(0) is not None:
            pass

    def forward(i: int) -> bool:
        event = nodes[i].recv(0)
        if isinstance(event, Received):
            assert isinstance(event.message, Ok)
            nodes[i].send(f"node/{(i + 1) % 4}", Ok(event.message.req + 1))
        return event is not None

    for i in (3, 2, 1):
        hub.add_pump(functools.partial(forward, i))
    nodes[0].send("node/1", Ok(0))
    event = nodes[0].recv(5.0)
    while isinstance(event, PeerUp):
        event = nodes[0].recv(5.0)
    assert event == Received("node/3", Ok(3))


def test_an_error_in_a_pump_reaches_the_waiting_role() -> None:
    hub = InprocHub()
    _, client = join(hub)

    def fail() -> bool:
        raise RuntimeError("the server broke")

    hub.add_pump(fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the server broke"):
            client.recv(1.0)
