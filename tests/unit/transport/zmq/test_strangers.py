"""What a peer that has proven nothing can cost a port in memory, at every stage of a connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from tests.contract.port_contract import Events, block_bytes, push
from tests.kit.peer import peer_process
from tests.kit.strangers import Stranger as Dealer
from tests.kit.strangers import pump_all

from paceline.messages import Ok, StatusReply
from paceline.testing.strangers import LARGEST_NBYTES, Strangers
from paceline.transport.base import Received
from paceline.transport.limits import LinkLimits
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.frames import WireLimits
from paceline.wire.headers import encode_header
from paceline.wire.slices import SLICE_NBYTES
from paceline.wire.token import new_token

TOKEN = new_token()
KIB, MIB = 1 << 10, 1 << 20
NUMBER = 24
MOST_KIB = 256


def where(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def encrypt(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def ports(encrypt: bool) -> Iterator[tuple[ZmqPort, ZmqPort, Events]]:
    """A listening port and a port that is connected to it by TCP."""
    server = ZmqPort("server/1", TOKEN, listen="127.0.0.1", encrypt=encrypt, local=False)
    client = ZmqPort("worker/1", TOKEN, encrypt=encrypt, local=False)
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    yield server, client, events
    client.close()
    server.close()


# ---------------------------------------------------------------- memory


def test_an_unproven_peer_costs_at_most_256_kib(encrypt: bool) -> None:
    """Strangers declare a command of ZeroMQ's handshake, of 64 MiB or of the most that is allowed, and never end it."""
    client = ZmqPort("client/1", TOKEN, encrypt=encrypt)
    try:
        with peer_process(TOKEN, "listen", "0", "server/1", encrypt=encrypt) as (process, address):
            client.connect(address)
            events = Events(client)
            events.until_up((client, "server/1"))
            role = psutil.Process(process.pid)
            usual = role.memory_info().rss
            with Strangers([where(address)], NUMBER, encrypted=encrypt) as strangers:
                assert strangers.pour(10.0)
                assert strangers.held == NUMBER // 2, "those that declared 64 MiB are turned away at once"
                grown = role.memory_info().rss - usual
                assert grown > 0.8 * NUMBER / 2 * LARGEST_NBYTES, "the others were received: the attack works"
                assert grown < NUMBER / 2 * MOST_KIB * KIB
            client.send("server/1", Ok(1))
            events.until(lambda: bool(events.received(client)))
            assert not events.downs(client)
    finally:
        client.close()


def test_a_port_that_connects_gives_an_impostor_no_more(encrypt: bool) -> None:
    """An impostor that listens in place of a dead role declares 64 MiB: the connecting port hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        client = ZmqPort("worker/1", TOKEN, encrypt=encrypt, limits=LinkLimits(retry_max_s=0.05))
        try:
            client.connect(f"tcp://127.0.0.1:{impostor.getsockname()[1]}")
            connection, _ = impostor.accept()
            with connection:
                connection.settimeout(5.0)
                mechanism = b"CURVE" if encrypt else b"PLAIN"
                connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32))
                connection.sendall(struct.pack("!BQ", 0x06, 64 * MIB))
                with contextlib.suppress(ConnectionError):
                    while connection.recv(1 << 16):
                        client.recv(0)
        finally:
            client.close()


@pytest.mark.parametrize(
    "greeting",
    [
        b"\x01\x00",  # no version: ZMTP 1.0 of the oldest ZeroMQ
        b"\xff" + bytes(8) + b"\x7f" + b"\x00\x05",
        b"\xff" + bytes(8) + b"\x7f" + b"\x01\x05\x00\x00",
        b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32),
    ],
    ids=["unversioned", "ZMTP 1", "ZMTP 2", "without a ticket"],
)
def test_connections_that_would_skip_the_ticket_are_closed_at_once(greeting: bytes) -> None:
    server = ZmqPort("server/1", TOKEN, listen="127.0.0.1")
    try:
        with socket.create_connection(where(str(server.address)), timeout=5.0) as stranger:
            stranger.sendall(greeting)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(1000):
                    pass
    finally:
        server.close()


def test_a_stranger_with_a_wrong_ticket_is_closed_whatever_it_sends_next() -> None:
    server = ZmqPort("server/1", TOKEN, listen="127.0.0.1", limits=LinkLimits(handshake_s=0.3))
    pump = pump_all(server)
    hello = b"\x05HELLO\x01x\x01y"
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0") + bytes(32)
    try:
        with socket.create_connection(where(str(server.address))) as stranger:
            stranger.sendall(greeting + bytes([4, len(hello)]) + hello)
            stranger.setblocking(False)
            deadline, closed = time.monotonic() + 5.0, False
            while not closed:
                assert time.monotonic() < deadline
                pump()
                try:
                    closed = stranger.recv(1000) == b"" or stranger.send(bytes(4096)) < 0
                except BlockingIOError:
                    continue
                except ConnectionError:
                    closed = True
        assert server.counters.refused["ticket"] == 1
    finally:
        server.close()


# ---------------------------------------------------------------- frames of every size still pass


def test_frames_and_headers_of_every_size_arrive_as_they_were_sent(ports: tuple[ZmqPort, ZmqPort, Events]) -> None:
    server, client, events = ports
    sizes = [1, SLICE_NBYTES - 1, SLICE_NBYTES, SLICE_NBYTES + 1, 2 * SLICE_NBYTES, MIB, 3 * MIB + 5]
    frames = [block_bytes(nbytes, seed) for seed, nbytes in enumerate(sizes)]
    delivery = client.send("server/1", push(1, frames), frames)
    client.send("server/1", StatusReply(2, bytes(3 * MIB)))
    client.send("server/1", StatusReply(3, bytes(SLICE_NBYTES)))
    events.until(lambda: len(events.received(server)) == 3 and delivery.done)
    first, *rest = events.received(server)
    assert [bytes(frame) for frame in first.frames] == [bytes(frame) for frame in frames]
    assert not any(frame.readonly for frame in first.frames)
    assert [e.message for e in rest] == [StatusReply(2, bytes(3 * MIB)), StatusReply(3, bytes(SLICE_NBYTES))]
    assert not server.counters.refused


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ([bytes(SLICE_NBYTES)], "frame-size"),
        ([bytes(SLICE_NBYTES)] * 9, "frame-cap"),
        ([b""] * 6, "frame-count"),
    ],
    ids=["a frame without an end", "a frame above the limit", "too many frames"],
)
def test_broken_slices_of_a_proven_peer_are_refused_by_name(parts: list[bytes], rule: str) -> None:
    limits = LinkLimits(wire=WireLimits(max_frame_nbytes=MIB, max_frames=5))
    server = ZmqPort("server/1", TOKEN, listen="127.0.0.1", limits=limits)
    pump: Callable[[], object] = pump_all(server)
    try:
        with Dealer(str(server.address), TOKEN).connect() as peer:
            peer.prove("worker/1", TOKEN, pump)
            header = encode_header(Ok(1))
            peer.send(header, *parts)
            peer.send(header)
            deadline = time.monotonic() + 5.0
            seen: list[object] = []
            while not any(isinstance(event, Received) for event in seen):
                assert time.monotonic() < deadline
                seen += [event for event in (server.recv(0.01),) if event is not None]
        assert server.counters.refused == {rule: 1}
    finally:
        server.close()
