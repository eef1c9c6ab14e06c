"""Two servers that need each other share one session, whichever connects first, and make it again after a loss."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from tests.kit.fake_coordinator import TOKEN

from paceline.clients.links import Links
from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Ok
from paceline.transport.base import PeerDown, PeerUp, Received
from paceline.transport.zmq.port import ZmqPort


class Server:
    """A port with its links; `heard` has the numbers that arrived."""

    def __init__(self, node: str) -> None:
        self.port = ZmqPort(node, TOKEN, listen="127.0.0.1")
        self.links = Links(self.port)
        self.heard: set[int] = set()
        self.sessions = 0

    def turn(self) -> None:
        while (event := self.port.recv(0)) is not None:
            self.links.note(event, time.monotonic())
            match event:
                case Received(message=Ok(req=req)):
                    self.heard.add(req)
                case PeerUp():
                    self.sessions += 1
                case PeerDown():
                    pass
        self.links.tick(time.monotonic())

    def say(self, other: Server, number: int) -> bool:
        try:
            self.port.send(other.port.node, Ok(number))
        except (PeerUnknownError, PeerLostError):
            self.links.lost(other.port.node, time.monotonic())
            return False
        return True

    def need(self, *others: Server) -> None:
        self.links.need({o.port.node: str(o.port.address) for o in others}, time.monotonic())


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        made = [Server(f"server-{n}/{n}") for n in range(3)]
        for server in made:
            stack.enter_context(closing(server.port))
        yield made


def until_heard(speaker: Server, listener: Server, number: int, timeout_s: float = 5.0) -> float:
    """Send `number` until it arrives; returns the seconds."""
    began = time.monotonic()
    while number not in listener.heard:
        assert time.monotonic() - began < timeout_s, "the servers do not reach each other"
        speaker.say(listener, number)
        for server in (speaker, listener):
            server.turn()
        time.sleep(0.002)
    return time.monotonic() - began


def rest(servers: list[Server], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for server in servers:
            server.turn()
        time.sleep(0.005)


def test_two_servers_that_need_each_other_share_one_session(servers: list[Server]) -> None:
    a, b, _ = servers
    a.need(b)
    b.need(a)
    until_heard(a, b, 1)
    until_heard(b, a, 2)
    rest([a, b], 1.0)
    assert (a.sessions, b.sessions) == (1, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_session_is_made_if_only_one_side_needs_it(servers: list[Server], first: int) -> None:
    a, b = (servers[0], servers[1]) if first == 0 else (servers[1], servers[0])
    a.need(b)
    assert until_heard(a, b, 1) < 2.0
    until_heard(b, a, 2)


def test_a_server_uses_the_session_that_its_peer_has_made(servers: list[Server]) -> None:
    a, b, _ = servers
    b.need(a)
    until_heard(b, a, 1)
    a.need(b)
    until_heard(a, b, 2)
    rest([a, b], 0.5)
    assert (a.sessions, b.sessions) == (1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_session_is_made_again(servers: list[Server], seed: int) -> None:
    dice = random.Random(seed)
    for server in servers:
        server.need(*(other for other in servers if other is not server))
    for number in range(12):
        a, b = dice.sample(servers, 2)
        until_heard(a, b, number)
        if dice.random() < 0.5:  # as an error on one side would
            a.port._sessions._links[b.port.node].end("unreachable", "a test")
            a.port._sessions._links.pop(b.port.node, None)
            a.links.lost(b.port.node, time.monotonic())
        rest(servers, dice.choice([0.0, 0.01, 0.1]))
    rest(servers, 0.6)
    before = [server.sessions for server in servers]
    rest(servers, 0.6)
    assert [server.sessions for server in servers] == before, "the servers must not replace each other's sessions"


def test_a_server_stops_connecting_to_a_peer_that_it_no_longer_needs(servers: list[Server]) -> None:
    a, b, c = servers
    a.need(b)
    until_heard(a, b, 1)
    a.need(c)
    until_heard(a, b, 2)  # an open session may stay
    b.port.close()
    deadline = time.monotonic() + 5
    while str(b.port._sessions.node) in a.links._links and time.monotonic() < deadline:
        a.turn()
        time.sleep(0.01)
    assert list(a.port._dials) == [c.port.address]
