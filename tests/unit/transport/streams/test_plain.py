"""Plain streams: loopback sessions without shared memory, bound to the proven ZeroMQ connection by one-time secrets."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from tests.contract.port_contract import PATIENCE_S, Events, block_bytes, push

from paceline.messages import Ok
from paceline.transport.limits import LinkLimits
from paceline.transport.streams import tcp
from paceline.transport.streams.dialing import StreamDial
from paceline.transport.streams.listener import StreamListener
from paceline.transport.streams.tcp import PlainChannel
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.handshake import NONCE_NBYTES, StreamOffer
from paceline.wire.token import new_token

TOKEN = new_token()
MIB = 1 << 20
MakePort = Callable[..., ZmqPort]


@pytest.fixture
def make_port() -> Iterator[MakePort]:
    made: list[ZmqPort] = []

    def make(node: str, **options: object) -> ZmqPort:
        made.append(ZmqPort(node, TOKEN, **{"local": False, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for port in made:
        port.close()


def both(make_port: MakePort, **options: object) -> tuple[ZmqPort, ZmqPort, Events]:
    server = make_port("server/1", listen="127.0.0.1", **options)
    client = make_port("worker/1", **options)
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    return server, client, events


def plain_links(port: ZmqPort) -> int:
    return sum(isinstance(link._channel, PlainChannel) for link in port._links.links)


def exchange(server: ZmqPort, client: ZmqPort, events: Events) -> None:
    frames = [block_bytes(nbytes, seed) for seed, nbytes in enumerate((1, 70_000, 3 * MIB))]
    delivery = client.send("server/1", push(1, frames), frames)
    server.send("worker/1", push(2, frames), frames)
    events.until(lambda: bool(events.received(server) and events.received(client)) and delivery.done)
    for port in (server, client):
        assert [bytes(frame) for frame in events.received(port)[0].frames] == [bytes(frame) for frame in frames]


@contextlib.contextmanager
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StreamOffer]]:
    """Collect the offers that listeners make."""
    made: list[StreamOffer] = []
    offer = StreamListener.offer

    def note(listener: StreamListener, *, sealed: bool) -> StreamOffer:
        made.append(offer(listener, sealed=sealed))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(StreamListener, "offer", note)
        yield made


# ---------------------------------------------------------------- which sessions are plain


def test_a_loopback_session_without_shared_memory_is_a_plain_stream(make_port: MakePort) -> None:
    server, client, events = both(make_port)
    assert (plain_links(server), plain_links(client)) == (1, 1)
    exchange(server, client, events)
    assert not server.counters.refused
    assert not client.counters.refused


@pytest.mark.parametrize("options", [{"encrypt": True}, {"local": True}, {"one_port": True}])
def test_other_sessions_are_not(make_port: MakePort, options: dict[str, bool]) -> None:
    server, client, events = both(make_port, **options)
    assert (plain_links(server), plain_links(client)) == (0, 0)
    exchange(server, client, events)


def test_a_loopback_port_can_do_without_a_second_port(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", one_port=True)
    listening = [c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert listening == [int(str(server.address).rpartition(":")[2])]


# ---------------------------------------------------------------- the session and its stream are bound to each other


def test_the_name_of_a_stream_is_valid_once(make_port: MakePort, monkeypatch: pytest.MonkeyPatch) -> None:
    with offered(monkeypatch) as offers:
        server, client, events = both(make_port)
    (offer,) = offers
    with socket.create_connection((offer.host, offer.port)) as thief:
        thief.sendall(offer.nonce)
        thief.setblocking(False)
        events.until(lambda: bool(select.select([thief], [], [], 0)[0]))
        assert thief.recv(100) == b""
    assert server.counters.refused == {"stream-name": 1}
    exchange(server, client, events)


def test_a_listener_without_the_secret_gets_no_message(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that has taken the port of the offer answers as a listener of sealed connections would."""
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            guest, _ = stranger.accept()
            with guest:
                guest.settimeout(PATIENCE_S)
                guest.sendall(b"\x06" * NONCE_NBYTES)
                with contextlib.suppress(OSError):
                    while got := guest.recv(4096):
                        seen.extend(got)

        thread = threading.Thread(target=answer)
        thread.start()
        port = stranger.getsockname()[1]
        offer = StreamOffer("127.0.0.1", port, b"n" * NONCE_NBYTES, b"s" * NONCE_NBYTES)
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(StreamListener, "offer", lambda _, sealed: offer)
            server, client, events = both(make_port)
        exchange(server, client, events)
        thread.join()
    assert (plain_links(server), plain_links(client)) == (0, 0)
    assert bytes(seen) == offer.nonce
    assert "another answer than that of the peer" in caplog.text


def hand_over_another_connection(dial: StreamDial) -> None:
    """Do as if the connection had been made: it is one that has sent no name."""
    dial.cancel()
    another = socket.create_connection(("127.0.0.1", dial._offer.port))
    another.setblocking(False)
    dial._on_ready(another)


def test_a_peer_that_chooses_a_stream_and_does_not_connect_is_refused(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StreamDial, "start", hand_over_another_connection)
        server = make_port("server/1", listen="127.0.0.1")
        client = make_port("worker/1")
        client.connect(str(server.address))
        events = Events(server, client)
        events.until(lambda: bool(server.counters.refused.get("lane")))
    assert not events.ups(server)


def test_the_end_of_the_zeromq_connection_ends_the_session(make_port: MakePort) -> None:
    server, client, events = both(make_port, limits=LinkLimits(retry_min_s=0.05, retry_max_s=0.05))
    assert server._listener is not None
    for connection in server._listener._connections:
        server._listener._connections.hang_up(connection)
    events.until(lambda: bool(events.downs(server) and events.downs(client)))
    events.until(lambda: len(events.ups(client)) == 2 and len(events.ups(server)) == 2)
    exchange(server, client, events)


# ---------------------------------------------------------------- bytes


def test_a_message_arrives_in_time_however_its_bytes_are_cut(make_port: MakePort) -> None:
    """The socket of a frame that is not complete reports many bytes at once only, but never keeps the last ones."""
    server, client, events = both(make_port)
    sizes = (1, tcp.WORTH_NBYTES - 1, tcp.WORTH_NBYTES, 70_000, MIB + 1, 3 * tcp.WORTH_NBYTES + 7)
    for req, nbytes in enumerate(sizes):
        frames = [block_bytes(nbytes, req), block_bytes(5, req)]
        client.send("server/1", push(req, frames), frames)
        client.send("server/1", Ok(req))
        began = time.monotonic()
        events.until(lambda count=2 * (req + 1): len(events.received(server)) == count)  # type: ignore[misc]
        assert time.monotonic() - began < 1.0
        got = events.received(server)[2 * req]
        assert [bytes(frame) for frame in got.frames] == [bytes(frame) for frame in frames]


def test_a_slow_sender_of_one_frame_is_read_to_the_last_byte() -> None:
    """The last bytes come long after the others, in a piece that is smaller than what wakes a reader in the middle."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    with there:
        here.setblocking(False)
        channel = PlainChannel(here)
        frame = memoryview(bytearray(tcp.WORTH_NBYTES + 10))
        with pytest.raises(BlockingIOError):
            channel.read_frame(frame)
        there.sendall(bytes(1000))
        assert not select.select([here], [], [], 0.05)[0]
        there.sendall(bytes(tcp.WORTH_NBYTES - 1000))
        assert select.select([here], [], [], PATIENCE_S)[0]
        read = channel.read_frame(frame)
        while read < tcp.WORTH_NBYTES:
            read += channel.read_frame(frame[read:])
        with pytest.raises(BlockingIOError):
            channel.read_frame(frame[read:])
        there.sendall(bytes(10))
        assert select.select([here], [], [], PATIENCE_S)[0]
        assert channel.read_frame(frame[read:]) == 10
        there.sendall(b"h")  # the head of the next record wakes the reader
        assert select.select([here], [], [], PATIENCE_S)[0]
        channel.close()


def test_a_peer_that_dies_within_a_frame_wakes_the_reader() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    here.setblocking(False)
    channel = PlainChannel(here)
    frame = memoryview(bytearray(MIB))
    with pytest.raises(BlockingIOError):
        channel.read_frame(frame)
    there.sendall(b"x")
    there.close()
    assert select.select([here], [], [], PATIENCE_S)[0]
    assert channel.read_frame(frame) == 1
    assert channel.read_frame(frame[1:]) == 0
    channel.close()
