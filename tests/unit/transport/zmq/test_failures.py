"""Peers that die, stop, restart or do not read: no call blocks, and the end of each session names its peer."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import pytest
from tests.contract.port_contract import Events, block_bytes, push
from tests.kit.peer import peer_process

from paceline.errors import PeerLostError
from paceline.messages import Ok, PushAck
from paceline.transport.base import Delivery
from paceline.transport.limits import LinkLimits
from paceline.transport.zmq.connections import Connection
from paceline.transport.zmq.outbox import Outbox
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.token import new_token

TOKEN = new_token()
MIB = 1 << 20
MakePort = Callable[..., ZmqPort]


@pytest.fixture(params=["tcp", "local"])
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_port(lane: str) -> Iterator[MakePort]:
    made: list[ZmqPort] = []

    def make(node: str, **options: object) -> ZmqPort:
        made.append(ZmqPort(node, TOKEN, local=lane == "local", **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for port in made:
        port.close()


def test_the_death_of_a_client_is_reported_at_once(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        events = Events(server)
        events.until_up((server, "worker/1"))
        process.kill()
        before = time.monotonic()
        events.until(lambda: bool(events.downs(server)))
        assert events.downs(server)[0].peer == "worker/1"
        assert time.monotonic() - before < 1.0


def test_the_death_of_a_listener_is_reported_at_once_and_its_successor_is_found(make_port: MakePort) -> None:
    client = make_port("worker/1", limits=LinkLimits(retry_max_s=0.1))
    events = Events(client)
    with peer_process(TOKEN, "listen", "0", "server/1") as (process, address):
        client.connect(address)
        events.until_up((client, "server/1"))
        for req in range(100):  # the listener dies before it has read all of these messages
            client.send("server/1", Ok(req))
        process.kill()
        before = time.monotonic()
        events.until(lambda: bool(events.downs(client)))
        assert time.monotonic() - before < 1.0
        assert events.downs(client)[0].peer == "server/1"
    events.forget()
    with peer_process(TOKEN, "listen", address.rpartition(":")[2], "server/2") as (_, again):
        assert again == address
        events.until_up((client, "server/2"))
        client.send("server/2", Ok(7))
        events.until(lambda: bool(events.received(client)))
        # The new session has no message of the old one.
        assert [e.message for e in events.received(client)] == [Ok(7)]


@pytest.mark.parametrize("stopped_listens", [True, False])
def test_a_send_to_a_stopped_peer_never_blocks_and_ends_its_session_by_name(
    make_port: MakePort, stopped_listens: bool
) -> None:
    limits = LinkLimits(queue_messages=16, retry_max_s=0.1)
    port = make_port("me/1", listen="127.0.0.1", limits=limits)
    arguments = ("listen", "0", "other/1") if stopped_listens else ("connect", str(port.address), "other/1")
    friend = make_port("friend/1", limits=limits)
    friend.connect(str(port.address))
    events = Events(port, friend)
    with peer_process(TOKEN, *arguments) as (process, address):
        if stopped_listens:
            port.connect(address)
        events.until_up((port, "other/1"), (port, "friend/1"), (friend, "me/1"))
        events.forget()
        os.kill(process.pid, signal.SIGSTOP)
        frames = [block_bytes(MIB)]
        message = push(1, frames)
        deliveries: list[Delivery] = []
        times = [time.monotonic()]

        def fill() -> None:
            while len(deliveries) < 500:
                deliveries.append(port.send("other/1", message, frames))
                times.append(time.monotonic())

        with pytest.raises(PeerLostError, match="lost other/1: its queue is full"):
            fill()
        assert max(after - before for before, after in itertools.pairwise(times)) < 0.5
        assert len(deliveries) >= 8
        friend.send("me/1", Ok(1))
        events.until(lambda: bool(events.received(port)))  # the port still serves other peers
        events.until(lambda: all(d.done for d in deliveries))  # the buffers are free again
        assert [e.peer for e in events.downs(port)] == ["other/1"]
        os.kill(process.pid, signal.SIGCONT)
        events.until(lambda: any(e.peer == "other/1" for e in events.ups(port)))
        port.send("other/1", Ok(5))
        events.until(lambda: Ok(5) in [e.message for e in events.received(port)])


def test_the_bytes_that_wait_for_a_peer_are_bounded(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(queue_nbytes=64 * MIB))
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        Events(server).until_up((server, "worker/1"))
        os.kill(process.pid, signal.SIGSTOP)
        frames = [block_bytes(8 * MIB) for _ in range(10)]
        server.send("worker/1", push(1, frames), frames)  # a single message always fits
        with pytest.raises(PeerLostError, match="queue is full"):
            server.send("worker/1", push(2, frames), frames)


def test_a_buffer_may_be_reused_once_its_delivery_is_done(make_port: MakePort) -> None:
    """96 frames of 1 MiB through four buffers: every frame arrives as it was when it was sent."""
    server = make_port("server/1", listen="127.0.0.1")
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as _:
        events = Events(server)
        events.until_up((server, "worker/1"))
        buffers = [memoryview(bytearray(MIB)) for _ in range(4)]
        deliveries = [server.send("worker/1", Ok(0)) for _ in buffers]
        expected: dict[int, str] = {}
        for req in range(96):
            at = req % len(buffers)
            events.until(lambda: deliveries[at].done)  # noqa: B023
            buffers[at][:] = bytes([req % 251]) * MIB
            expected[req] = str(zlib.crc32(buffers[at]))
            deliveries[at] = server.send("worker/1", push(req, [buffers[at]]), [buffers[at]])
        events.until(lambda: len([e for e in events.received(server) if isinstance(e.message, PushAck)]) == 96)
        acks = [e.message for e in events.received(server) if isinstance(e.message, PushAck)]
        assert {ack.req: ack.outcome for ack in acks} == expected


def test_a_buffer_that_is_reused_too_early_changes_what_the_receiver_reads(make_port: MakePort) -> None:
    """The control of the test above: this sender does not wait for `done`."""
    server = make_port("server/1", listen="127.0.0.1")
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        events = Events(server)
        events.until_up((server, "worker/1"))
        os.kill(process.pid, signal.SIGSTOP)
        buffer = memoryview(bytearray(MIB))
        sums = []
        for req in range(64):
            buffer[:] = bytes([req]) * MIB
            sums.append(str(zlib.crc32(buffer)))
            server.send("worker/1", push(req, [buffer]), [buffer])
        os.kill(process.pid, signal.SIGCONT)
        events.until(lambda: len(events.received(server)) == 64)
        acks = [e.message for e in events.received(server)]
        assert sum(isinstance(ack, PushAck) and ack.outcome != sums[ack.req] for ack in acks) > 0


def test_close_returns_soon_even_if_a_queue_is_full(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        Events(server).until_up((server, "worker/1"))
        os.kill(process.pid, signal.SIGSTOP)
        frames = [block_bytes(MIB)]
        for req in range(50):
            server.send("worker/1", push(req, frames), frames)
        before = time.monotonic()
        server.close()
        assert time.monotonic() - before < 1.0


def test_messages_sent_before_close_arrive(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    frames = [client.memory.allocate(MIB) for _ in range(8)]
    for seed, frame in enumerate(frames):
        frame[:] = block_bytes(MIB, seed)
    client.send("server/1", push(1, frames), frames)
    client.send("server/1", Ok(2))
    events.ports.remove(client)
    closing = threading.Thread(target=client.close)  # the server reads meanwhile
    closing.start()
    events.until(lambda: bool(events.downs(server)))
    closing.join()
    assert [type(e.message).__name__ for e in events.received(server)] == ["Push", "Ok"]
    assert [bytes(frame) for frame in events.received(server)[0].frames] == [bytes(frame) for frame in frames]


def test_peers_that_connect_and_close_leak_no_descriptor_and_each_end_names_its_peer(
    make_port: MakePort, lane: str
) -> None:
    """The system reuses descriptors here: each `PeerDown` must name the right peer."""
    server = make_port("server/1", listen="127.0.0.1")
    stays = make_port("stays/1")
    stays.connect(str(server.address))
    events = Events(server, stays)
    events.until_up((server, "stays/1"), (stays, "server/1"))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(40):
        events.forget()
        brief = ZmqPort(f"brief/{number}", TOKEN, local=lane == "local")
        brief.connect(str(server.address))
        while brief.recv(0.002) is None:
            events.seen["server/1"] += [e for e in (server.recv(0.002),) if e is not None]
        brief.send("server/1", Ok(number))
        brief.close()
        events.until(lambda: bool(events.downs(server)))
        assert [e.peer for e in events.seen["server/1"]] == [f"brief/{number}"] * 3
    events.until(lambda: len(os.listdir("/proc/self/fd")) == before)
    server.send("stays/1", Ok(1))
    events.until(lambda: bool(events.received(stays)))
    assert server._listener is not None
    assert len(list(server._listener._connections)) == len(server._listener._routes) == 1


def test_a_descriptor_that_was_reused_for_something_else_is_not_shut_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = ZmqPort("server/1", TOKEN, listen="127.0.0.1")
    reading, writing = os.pipe()
    try:
        listener = port._listener
        assert listener is not None
        connections = listener._connections
        connection = Connection(listener, Outbox(LinkLimits()), reading, 0.0)
        monkeypatch.setattr(connections, "take_events", connection.lost)
        before = len(os.listdir("/proc/self/fd"))
        connections.hang_up(connection)
        assert len(os.listdir("/proc/self/fd")) == before
        os.write(writing, b"x")
        assert os.read(reading, 1) == b"x"
    finally:
        os.close(reading)
        os.close(writing)
        port.close()
