"""Only processes with the token may send messages to a port; a stranger cannot harm it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
import zmq
from tests.contract.port_contract import Events
from tests.kit.peer import peer_process
from tests.kit.strangers import Proxy, Stranger, pump_all

from paceline.errors import TransportError
from paceline.messages import Ok, Register, StatusReply, StatusRequest
from paceline.transport.base import PeerDown, PeerUp, Port, Received
from paceline.transport.limits import LinkLimits
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.handshake import ClientHandshake, Farewell, Hello, Proof, decode_control, encode_control
from paceline.wire.headers import encode_header
from paceline.wire.token import VERSION, make_ticket, new_token

TOKEN = new_token()
MakePort = Callable[..., ZmqPort]


@pytest.fixture
def make_port() -> Iterator[MakePort]:
    made: list[ZmqPort] = []

    def make(node: str, token: bytes = TOKEN, **options: object) -> ZmqPort:
        made.append(ZmqPort(node, token, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for port in made:
        port.close()


def address_of(port: Port) -> str:
    assert port.address is not None
    return port.address


def wait_until(condition: Callable[[], bool], pump: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        pump()
        time.sleep(0.001)


# ---------------------------------------------------------------- where a port listens


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "*", "", "localhost", "eth0", "224.0.0.1"])
def test_a_port_listens_on_one_address_only(listen: str) -> None:
    with pytest.raises(ValueError, match="that peers connect to"):
        ZmqPort("server/1", TOKEN, listen=listen)


def test_a_port_does_not_listen_unencrypted_beyond_loopback() -> None:
    with pytest.raises(ValueError, match="encrypt"):
        ZmqPort("server/1", TOKEN, listen="192.0.2.7", encrypt=False)
    with pytest.raises(TransportError, match=r"192\.0\.2\.7"):  # encrypted, but not an address of this machine
        ZmqPort("server/1", TOKEN, listen="192.0.2.7")


def test_a_port_does_not_connect_unencrypted_beyond_loopback(make_port: MakePort) -> None:
    with pytest.raises(ValueError, match="encrypt"):
        make_port("worker/1", encrypt=False).connect("tcp://192.0.2.7:5000")


def test_the_listening_sockets_are_on_loopback(make_port: MakePort) -> None:
    port = make_port("server/1", listen="127.0.0.1")
    listening = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert port.address in [f"tcp://{c.laddr.ip}:{c.laddr.port}" for c in listening]
    assert [c.laddr.ip for c in listening] == ["127.0.0.1"] * 2


def test_two_ports_cannot_share_an_address(make_port: MakePort) -> None:
    first = make_port("server/1", listen="127.0.0.1")
    with pytest.raises(TransportError, match="cannot listen"):
        make_port("server/2", listen="127.0.0.1", port=int(address_of(first).rpartition(":")[2]))


def test_two_ports_connect_over_ipv6_loopback(make_port: MakePort) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = make_port("server/1", listen="::1")
    client = make_port("worker/1")
    client.connect(address_of(server))
    Events(server, client).until_up((server, "worker/1"), (client, "server/1"))


def test_connections_to_a_public_address_are_encrypted_by_default(make_port: MakePort) -> None:
    addresses = [
        address.address
        for of_interface in psutil.net_if_addrs().values()
        for address in of_interface
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    server = make_port("server/1", listen=addresses[0])
    client = make_port("worker/1")
    client.connect(address_of(server))
    Events(server, client).until_up((server, "worker/1"), (client, "server/1"))
    with Stranger(address_of(server)).connect() as stranger:
        stranger.send(b"x")
        wait_until(lambda: "connection-handshake" in server.counters.refused, pump_all(server))


# ---------------------------------------------------------------- the token


@pytest.mark.parametrize("encrypt", [None, True])
def test_token_check_refuses_a_port_with_another_token(make_port: MakePort, encrypt: bool | None) -> None:
    server = make_port("server/1", listen="127.0.0.1", encrypt=encrypt)
    other = make_port("worker/1", new_token(), encrypt=encrypt)
    other.connect(address_of(server))
    events = Events(server, other)
    events.until(lambda: bool(events.downs(other)) and bool(server.counters.refused))
    assert events.seen["server/1"] == []
    assert not events.ups(other)
    assert events.downs(other)[0].peer == server.address
    assert "token" in events.downs(other)[0].reason
    assert sum(other.counters.refused.values()) >= 1
    assert set(server.counters.refused) <= {"ticket", "connection-handshake"}
    assert "ticket" in server.counters.refused or encrypt


def test_token_check_also_applies_to_a_peer_with_a_ticket(make_port: MakePort) -> None:
    """A peer with a ticket must still prove the token; if it fails, the refusal names the rule."""
    server = make_port("server/1", listen="127.0.0.1")
    pump = pump_all(server)
    with Stranger(address_of(server), TOKEN).connect() as stranger:
        handshake = ClientHandshake("worker/1", new_token())
        stranger.send(handshake.hello())
        challenge = stranger.answer(pump)
        with pytest.raises(TransportError, match="token"):
            handshake.receive(challenge)
        stranger.send(encode_control(Hello("worker/1", bytes(32))))
        farewell = decode_control(stranger.answer(pump))
        assert isinstance(farewell, Farewell)
        assert server.counters.refused == {"control": 1}
        with pytest.raises(TransportError, match="no session"):
            server.send("worker/1", Ok(1))


def test_token_check_refuses_a_wrong_proof_by_name(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    with Stranger(address_of(server), TOKEN).connect() as stranger:
        stranger.send(ClientHandshake("worker/1", TOKEN).hello())
        stranger.answer(pump_all(server))
        stranger.send(encode_control(Proof(bytes(32))))
        farewell = decode_control(stranger.answer(pump_all(server)))
    assert isinstance(farewell, Farewell)
    assert farewell.rule == "token"
    assert server.counters.refused == {"token": 1}


def test_token_check_keeps_strangers_from_sending_frames(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    name, password = make_ticket(TOKEN, int(address_of(server).rpartition(":")[2]))
    tickets = [
        None,
        (name, "x"),
        ("x", password),
        (name, password[:-2]),
        make_ticket(TOKEN, 1),
        make_ticket(new_token(), 1),
    ]
    for ticket in tickets:
        with Stranger(address_of(server)) as stranger:
            if ticket is not None:
                stranger.use_ticket(*ticket)
            stranger.connect()
            stranger.send(ClientHandshake("worker/1", TOKEN).hello())
            assert not stranger.socket.poll(20)
            pump_all(server)()
            assert not stranger.socket.poll(20)
            pump_all(server)()
    assert server.counters.refused["ticket"] == 5
    assert server.counters.refused["connection-handshake"] == 6
    assert set(server.counters.refused) == {"ticket", "connection-handshake"}


def test_token_check_accepts_a_ticket_once(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    ticket = make_ticket(TOKEN, int(address_of(server).rpartition(":")[2]))
    for times_shown in range(2):
        with Stranger(address_of(server)) as stranger:
            stranger.use_ticket(*ticket)
            stranger.connect()
            stranger.send(ClientHandshake("worker/1", TOKEN).hello())
            if times_shown == 0:
                assert stranger.answer(pump_all(server))
            else:
                wait_until(lambda: server.counters.refused.get("ticket") == 1, pump_all(server))
                assert not stranger.socket.poll(20)


@pytest.mark.parametrize("encrypt", [None, True])
def test_the_token_is_never_sent(make_port: MakePort, encrypt: bool | None) -> None:
    server = make_port("server/1", listen="127.0.0.1", encrypt=encrypt, local=False)
    proxy = Proxy(address_of(server))
    try:
        client = make_port("worker/1", encrypt=encrypt)
        client.connect(proxy.address)
        events: list[object] = []

        def pump() -> None:
            proxy.pump()
            events.extend(e for e in (server.recv(0.001), client.recv(0.001)) if e is not None)

        wait_until(lambda: sum(isinstance(e, PeerUp) for e in events) == 2, pump)
        client.send("server/1", Register(1, "worker", "a-name-to-look-for", 1, "host"))
        wait_until(lambda: any(isinstance(e, Received) for e in events), pump)
    finally:
        proxy.close()
    seen = bytes(proxy.seen)
    # The proxy saw every byte: it can read unencrypted messages, and no encrypted ones.
    assert (b"a-name-to-look-for" in seen) == (not encrypt)
    for start in range(len(TOKEN) - 7):
        assert TOKEN[start : start + 8] not in seen
    assert TOKEN.hex().encode() not in seen.lower()


def test_another_version_is_refused_by_name(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    with Stranger(address_of(server), TOKEN).connect() as stranger:
        stranger.send(encode_control(Hello("worker/1", bytes(32)), version=VERSION + 1))
        farewell = decode_control(stranger.answer(pump_all(server)))
    assert isinstance(farewell, Farewell)
    assert farewell.rule == "version"
    assert server.counters.refused == {"version": 1}


# ---------------------------------------------------------------- before and instead of the handshake


def test_messages_before_the_handshake_are_refused_once_and_dropped(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    with Stranger(address_of(server), TOKEN).connect() as stranger:
        for req in range(50):
            stranger.send(encode_header(Ok(req)))
        farewell = decode_control(stranger.answer(pump_all(server)))
        assert isinstance(farewell, Farewell)
        assert farewell.rule == "unauthenticated"
        wait_until(lambda: server.counters.refused.get("connection-over", 0) >= 49, pump_all(server))
        assert not stranger.socket.poll(10)
    assert server.counters.refused["unauthenticated"] == 1
    assert server.counters.received_messages == 0


def test_a_session_cannot_be_taken_over_by_its_routing_id(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(address_of(server))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    assert server._listener is not None
    (route,) = server._listener._routes
    for token in (None, TOKEN):
        with Stranger(address_of(server), token, routing_id=route).connect() as thief:
            thief.send(encode_header(Ok(666)))
            for _ in range(20):
                pump_all(server)()
                assert not thief.socket.poll(5)
    client.send("server/1", Ok(1))
    server.send("worker/1", Ok(2))
    events.forget()
    events.until(lambda: bool(events.received(server)) and bool(events.received(client)))
    assert events.received(server) == [Received("worker/1", Ok(1))]
    assert events.received(client) == [Received("server/1", Ok(2))]


def test_a_stranger_cannot_end_the_process_by_claiming_the_next_routing_id(make_port: MakePort) -> None:
    """ZeroMQ's routing ids can be guessed, and a claim of one that is in use fails an assertion of ZeroMQ."""
    with peer_process(TOKEN, "listen", "0", "server/1") as (process, address), ExitStack() as strangers:
        client = make_port("worker/1")
        client.connect(address)
        events = Events(client)
        events.until_up((client, "server/1"))
        route = bytes.fromhex(status_of(client, events)["routes"][0])
        for i in range(1, 6):
            guess = b"\0" + ((int.from_bytes(route[1:]) + i) % 2**32).to_bytes(4)
            stranger = Stranger(address, new_token(), routing_id=guess)
            strangers.enter_context(stranger.connect()).send(b"mine")
        while status_of(client, events)["refused"].get("ticket", 0) < 5:
            time.sleep(0.01)
        for number in range(2, 5):
            later = make_port(f"worker/{number}")
            later.connect(address)
            Events(later).until_up((later, "server/1"))
        assert process.poll() is None


def status_of(client: Port, events: Events) -> Any:
    """The counters and routes of the peer process."""
    events.forget()
    client.send("server/1", StatusRequest(1))
    events.until(lambda: bool(events.received(client)))
    reply = events.received(client)[0].message
    assert isinstance(reply, StatusReply)
    return json.loads(reply.json)


def test_connections_that_send_nothing_are_closed(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(handshake_s=0.3))
    host, port = address_of(server).removeprefix("tcp://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(5)]
    with Stranger(address_of(server), TOKEN).connect() as admitted:
        wait_until(lambda: server.counters.refused.get("handshake-deadline", 0) >= 6, pump_all(server))
        for connection in silent:
            connection.settimeout(5.0)
            while connection.recv(1000):  # ZeroMQ's greeting, then the end
                pass
            connection.close()
        del admitted
    assert server.recv(0) is None


def test_the_number_of_unproven_connections_is_bounded(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(max_unproven=8))
    host, port = address_of(server).removeprefix("tcp://").split(":")
    many = [socket.create_connection((host, int(port))) for _ in range(300)]
    try:
        wait_until(lambda: server.counters.refused.get("too-many-unproven", 0) == 292, pump_all(server))
        for connection in many[:292]:
            connection.settimeout(5.0)
            while connection.recv(1000):
                pass
        client = make_port("worker/1")
        client.connect(address_of(server))
        events = Events(server, client)
        events.until_up((server, "worker/1"), (client, "server/1"))
    finally:
        for connection in many:
            connection.close()


def test_a_client_sends_no_message_to_an_impostor(make_port: MakePort) -> None:
    """A listener without the token gets the first frame only, and the client reports the failure to its role."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    impostor = context.socket(zmq.ROUTER)
    impostor.setsockopt(zmq.LINGER, 0)
    number = impostor.bind_to_random_port("tcp://127.0.0.1")
    client = make_port("worker/1", limits=LinkLimits(handshake_s=0.3))
    try:
        client.connect(f"tcp://127.0.0.1:{number}")
        told = client.recv(5.0)
        assert isinstance(told, PeerDown)
        assert told.peer == f"tcp://127.0.0.1:{number}"
        assert not impostor.poll(50)
    finally:
        context.destroy(0)
