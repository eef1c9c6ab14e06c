"""Network namespaces in place of hosts: processes of one share memory, processes of two have a sealed connection."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest
from tests.contract.port_contract import Events
from tests.kit.peer import pattern, peer_process

from paceline.messages import Pull, PullReply
from paceline.testing.network import Network, problem
from paceline.transport.limits import LinkLimits
from paceline.transport.sealed.channel import Buffers, SealedChannel
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.token import new_token

TOKEN = new_token()
_why = problem()
pytestmark = pytest.mark.skipif(_why is not None, reason=str(_why))


@pytest.fixture
def net() -> Iterator[Network]:
    with Network(["a", "b"]) as made:
        yield made


@pytest.fixture
def server(net: Network) -> Iterator[ZmqPort]:
    with net.inside("a"):
        port = ZmqPort("server/1", TOKEN, listen=net.address("a"), limits=LinkLimits(ping_s=0.1, quiet_s=0.3))
    yield port
    port.close()


def ask(server: ZmqPort, events: Events) -> None:
    server.send("worker/1", Pull(1, 0, 0, 1, blocks=(100_000,)))
    events.until(lambda: bool(events.received(server)))
    (event,) = events.received(server)
    assert isinstance(event.message, PullReply)
    assert bytes(event.frames[0]) == pattern(100_000)


def near(server: ZmqPort) -> list[bool]:
    return [link.near for link in server._links.links]


def test_two_namespaces_have_a_sealed_connection_and_notice_a_cut(net: Network, server: ZmqPort) -> None:
    events = Events(server)
    with net.inside("b"), peer_process(TOKEN, "connect", str(server.address), "worker/1"):
        events.until_up((server, "worker/1"))
        assert near(server) == [False]
        ask(server, events)
        net.close_ways({("a", "b"), ("b", "a")})
        began = time.monotonic()
        events.until(lambda: bool(events.downs(server)))
        assert time.monotonic() - began < 2.0
        net.close_ways(())
        events.until(lambda: len(events.ups(server)) == 2)


def test_two_processes_of_one_namespace_share_memory_also_at_a_public_address(net: Network, server: ZmqPort) -> None:
    events = Events(server)
    with net.inside("a"), peer_process(TOKEN, "connect", str(server.address), "worker/1"):
        events.until_up((server, "worker/1"))
        assert near(server) == [True]
        ask(server, events)


def test_a_sealed_connection_that_alone_is_cut_while_idle_is_found_within_seconds(net: Network) -> None:
    """No ZeroMQ connection beside it tells of the cut."""
    with net.inside("a"):
        listener = socket.create_server((net.address("a"), 0))
    with net.inside("b"):
        there = socket.create_connection(listener.getsockname())
    here, _ = listener.accept()
    channel = SealedChannel(here, bytes(32), bytes(32), Buffers())
    with listener, there:
        try:
            assert not select.select([here], [], [], 2.0)[0], "an idle connection stays"
            net.close_ways({("a", "b"), ("b", "a")})
            began = time.monotonic()
            assert select.select([here], [], [], 10.0)[0]
            assert time.monotonic() - began < 6.0
            with pytest.raises(TimeoutError):
                channel.read_head(memoryview(bytearray(100)))
        finally:
            channel.close()
