"""Ports that encrypt: their sessions use sealed connections, and strangers get nothing from the port for these."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from tests.contract.port_contract import PATIENCE_S, Events, block_bytes, push
from tests.kit.peer import peer_process
from tests.kit.strangers import Proxy

from paceline.errors import TransportError
from paceline.messages import Ok, Register
from paceline.transport.base import PeerDown
from paceline.transport.limits import LinkLimits
from paceline.transport.streams.listener import StreamListener
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.handshake import StreamOffer
from paceline.wire.token import new_token

TOKEN = new_token()
KIB = 1 << 10
MakePort = Callable[..., ZmqPort]


@pytest.fixture
def make_port() -> Iterator[MakePort]:
    made: list[ZmqPort] = []

    def make(node: str, **options: object) -> ZmqPort:
        made.append(ZmqPort(node, TOKEN, **{"encrypt": True, "local": False, **options}))  # type: ignore[arg-type]
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


def sealed_links(port: ZmqPort) -> int:
    return sum(not link.near for link in port._links.links)


def data_port(server: ZmqPort) -> tuple[str, int]:
    assert server._listener is not None
    assert server._listener._stream_listener is not None
    return "127.0.0.1", server._listener._stream_listener.port


def exchange(server: ZmqPort, client: ZmqPort, events: Events) -> None:
    frames = [block_bytes(nbytes, seed) for seed, nbytes in enumerate((1, 70_000, 3 << 20))]
    delivery = client.send("server/1", push(1, frames), frames)
    server.send("worker/1", push(2, frames), frames)
    events.until(lambda: bool(events.received(server) and events.received(client)) and delivery.done)
    for port in (server, client):
        assert [bytes(frame) for frame in events.received(port)[0].frames] == [bytes(frame) for frame in frames]


@pytest.mark.parametrize("insecure_blocks", [False, True])
def test_sessions_of_encrypted_ports_are_sealed(make_port: MakePort, insecure_blocks: bool) -> None:
    server, client, events = both(make_port, insecure_blocks=insecure_blocks)
    assert (sealed_links(server), sealed_links(client)) == (1, 1)
    exchange(server, client, events)
    assert not server.counters.refused
    assert not client.counters.refused


@pytest.mark.parametrize("insecure_blocks", [False, True])
def test_somebody_on_the_network_reads_no_message(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, insecure_blocks: bool
) -> None:
    """All bytes of the sealed connection pass a proxy, which looks for names, blocks and the token in them."""
    server = make_port("server/1", listen="127.0.0.1", insecure_blocks=insecure_blocks)
    proxy = Proxy("tcp://{}:{}".format(*data_port(server)))
    offer = StreamListener.offer

    def offer_the_proxy(listener: StreamListener, *, sealed: bool) -> StreamOffer:
        made = offer(listener, sealed=sealed)
        return StreamOffer("127.0.0.2", made.port, made.nonce, made.secret)

    monkeypatch.setattr(StreamListener, "offer", offer_the_proxy)
    client = make_port("worker/1", insecure_blocks=insecure_blocks)
    client.connect(str(server.address).replace("127.0.0.1", "localhost"))
    events = Events(server, client)

    def pumped(condition: Callable[[], bool]) -> Callable[[], bool]:
        def pump() -> bool:
            proxy.pump()
            return condition()

        return pump

    try:
        events.until(pumped(lambda: bool(events.ups(server) and events.ups(client))))
        frames = [block_bytes(20_000)]
        client.send("server/1", Register(1, "worker", "a-name-to-look-for", 1, "host"))
        client.send("server/1", push(2, frames), frames)
        events.until(pumped(lambda: len(events.received(server)) == 2))
    finally:
        proxy.close()
    seen = bytes(proxy.seen)
    assert len(seen) > 20_000
    assert b"a-name-to-look-for" not in seen
    assert (bytes(frames[0][:64]) in seen) == insecure_blocks
    assert not any(TOKEN[start : start + 8] in seen for start in range(len(TOKEN) - 7))


def test_two_sides_that_do_not_agree_about_blocks_refuse_each_other_by_name(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", insecure_blocks=True)
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until(lambda: bool(events.downs(client)))
    assert events.downs(client)[0].refused == "insecure-blocks"
    assert "same insecure_blocks" in events.downs(client)[0].reason
    assert not events.ups(server)


def test_a_client_that_sends_no_blocks_does_as_the_listener_does(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", insecure_blocks=True)
    client = make_port("observer/1", insecure_blocks=None)
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "observer/1"), (client, "server/1"))
    client.send("server/1", Ok(1))
    events.until(lambda: bool(events.received(server)))


# ---------------------------------------------------------------- when the second port cannot be reached


def test_a_session_stays_on_zeromq_if_the_second_port_is_closed(
    make_port: MakePort, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    assert server._listener is not None
    assert server._listener._stream_listener is not None
    server._listener._stream_listener.close()
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    with caplog.at_level(logging.WARNING):
        events.until_up((server, "worker/1"), (client, "server/1"))
    assert (sealed_links(server), sealed_links(client)) == (0, 0)
    assert "Open the ports of that host" in caplog.text
    exchange(server, client, events)


def test_a_port_can_do_without_a_second_port(make_port: MakePort, caplog: pytest.LogCaptureFixture) -> None:
    server = make_port("server/1", listen="127.0.0.1", one_port=True)
    listening = [c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert listening == [int(str(server.address).rpartition(":")[2])]
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    assert (sealed_links(server), sealed_links(client)) == (0, 0)
    assert caplog.text == ""
    exchange(server, client, events)


def test_a_session_stays_on_zeromq_if_the_second_port_does_not_answer(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("paceline.transport.zmq.dial.CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(
            StreamListener, "offer", lambda _, sealed: StreamOffer("127.0.0.1", port, bytes(32), bytes(32))
        )
        with caplog.at_level(logging.WARNING):
            server, client, events = both(make_port)
    assert "no answer" in caplog.text
    exchange(server, client, events)


def test_a_missing_package_is_named_when_an_encrypted_port_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    line = r"pip install 'paceline\[hosts\]'"
    with pytest.raises(TransportError, match=line):
        ZmqPort("server/1", TOKEN, listen="192.0.2.7")
    client = ZmqPort("worker/1", TOKEN)
    try:
        with pytest.raises(TransportError, match=line):
            client.connect("tcp://192.0.2.7:5000")
        client.connect("tcp://127.0.0.1:5000")
    finally:
        client.close()


# ---------------------------------------------------------------- ends


@contextlib.contextmanager
def closing(client: ZmqPort, events: Events) -> Iterator[None]:
    """Close `client` in a thread, because the other port has to read meanwhile."""
    events.ports.remove(client)
    thread = threading.Thread(target=client.close)
    thread.start()
    thread.join(0.05)
    yield
    thread.join()


def test_the_last_messages_of_a_peer_that_closes_arrive(make_port: MakePort) -> None:
    """Most of them wait in the port: the socket does not accept so many bytes, whatever the system's buffers are."""
    server, client, events = both(make_port, limits=LinkLimits(linger_s=PATIENCE_S))
    (link,) = client._links.links
    with socket.socket(fileno=os.dup(link._channel.fileno())) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
    frames = [block_bytes(200_000)]
    for req in range(20):
        client.send("server/1", push(req, frames), frames)
    assert not link.flushed
    with closing(client, events):
        events.until(lambda: bool(events.downs(server)))
    assert len(events.received(server)) == 20
    assert isinstance(events.seen["server/1"][-1], PeerDown)


def test_the_last_message_of_a_peer_that_has_not_read_everything_arrives(make_port: MakePort) -> None:
    """The system resets a connection that is closed while it has unread bytes, and drops what it has not sent."""
    server, client, events = both(make_port, limits=LinkLimits(linger_s=PATIENCE_S))
    (link,) = client._links.links
    server.send("worker/1", Ok(1))
    assert select.select([link._channel.fileno()], [], [], PATIENCE_S)[0]
    frames = [block_bytes(1 << 20)]
    client.send("server/1", push(2, frames), frames)
    with closing(client, events):
        events.until(lambda: bool(events.downs(server)))
    assert [event.message for event in events.received(server)] == [push(2, frames)]


def test_the_last_message_before_a_disconnection_arrives_although_an_answer_was_not_read(make_port: MakePort) -> None:
    server, client, events = both(make_port, limits=LinkLimits(linger_s=PATIENCE_S))
    (link,) = client._links.links
    server.send("worker/1", Ok(1))
    assert select.select([link._channel.fileno()], [], [], PATIENCE_S)[0]
    frames = [block_bytes(1 << 20)]
    client.send("server/1", push(2, frames), frames)
    client.disconnect("server/1")
    events.until(lambda: bool(events.downs(server)))
    assert [event.message for event in events.received(server)] == [push(2, frames)]
    events.until(lambda: not client._links.links)


def test_a_port_that_closes_does_not_wait_for_a_peer_that_has_everything(make_port: MakePort) -> None:
    server, client, events = both(make_port, limits=LinkLimits(linger_s=PATIENCE_S))
    server.send("worker/1", Ok(1))
    client.send("server/1", Ok(2))
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < PATIENCE_S / 2
    events.ports.remove(client)
    events.until(lambda: bool(events.downs(server)))
    assert [event.message for event in events.received(server)] == [Ok(2)]


def test_the_death_of_a_peer_is_reported_at_once(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    events = Events(server)
    with peer_process(TOKEN, "connect", str(server.address), "worker/1", encrypt=True) as (process, _):
        events.until_up((server, "worker/1"))
        process.kill()
        began = time.monotonic()
        events.until(lambda: bool(events.downs(server)))
        assert time.monotonic() - began < 1.0


def test_a_session_whose_sealed_connection_alone_is_cut_ends_and_comes_back(make_port: MakePort) -> None:
    server, client, events = both(make_port)
    next(iter(client._links.links))._channel.shutdown()
    events.until(lambda: len(events.ups(server)) == 2 and len(events.ups(client)) == 2)
    assert (len(events.downs(server)), len(events.downs(client))) == (1, 1)
    exchange(server, client, events)


def test_a_closed_port_keeps_no_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        server = ZmqPort("server/1", TOKEN, listen="127.0.0.1", encrypt=True, local=False)
        client = ZmqPort("worker/1", TOKEN, encrypt=True, local=False)
        client.connect(str(server.address))
        Events(server, client).until_up((server, "worker/1"), (client, "server/1"))
        client.close()
        server.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


# ---------------------------------------------------------------- strangers


def is_closed(stranger: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        try:
            return stranger.recv(100) == b""
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("content", [b"", b"x", bytes(31), bytes(32), b"GET / HTTP/1.1\r\n" * 4096])
def test_a_stranger_at_the_second_port_is_closed(make_port: MakePort, content: bytes) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(handshake_s=0.2))
    with socket.create_connection(data_port(server)) as stranger:
        stranger.setblocking(False)
        if content:
            stranger.send(content)
        deadline = time.monotonic() + 5.0
        while not is_closed(stranger):
            assert server.recv(0.02) is None
            assert time.monotonic() < deadline
    assert set(server.counters.refused) == ({"stream-name"} if len(content) >= 32 else {"handshake-deadline"})


def test_a_port_keeps_few_strangers_at_its_second_port(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(max_unproven=4))
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(data_port(server))) for _ in range(10)]
        for stranger in strangers:
            stranger.setblocking(False)
        deadline = time.monotonic() + 5.0
        while sum(is_closed(stranger) for stranger in strangers) < 6:
            assert server.recv(0.02) is None
            assert time.monotonic() < deadline
    assert server.counters.refused == {"too-many-unproven": 6}


def test_strangers_at_the_second_port_cost_almost_no_memory() -> None:
    """What they send stays in the system: the port reads 32 bytes of it."""
    client = ZmqPort("client/1", TOKEN, encrypt=True, local=False)
    try:
        with (
            peer_process(TOKEN, "listen", "0", "server/1", encrypt=True) as (process, address),
            contextlib.ExitStack() as stack,
        ):
            client.connect(address)
            events = Events(client)
            events.until_up((client, "server/1"))
            where = second_port(process.pid, address)
            role = psutil.Process(process.pid)
            usual = role.memory_info().rss
            for _ in range(24):
                stranger = stack.enter_context(socket.create_connection(where))
                stranger.setblocking(False)
                with contextlib.suppress(OSError):
                    for _ in range(64):
                        stranger.send(bytes(64 * KIB))
            client.send("server/1", Ok(1))
            events.until(lambda: bool(events.received(client)))
            assert role.memory_info().rss - usual < 24 * 64 * KIB
            assert not events.downs(client)
    finally:
        client.close()


def second_port(pid: int, address: str) -> tuple[str, int]:
    first = int(address.rpartition(":")[2])
    listening = [c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return next((where.ip, where.port) for where in listening if where.port != first)
