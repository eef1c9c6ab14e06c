"""How a local link ends: what was sent is read, what was lent comes back, and nothing is swallowed."""

from __future__ import annotations

import contextlib
import errno
import os
import socket as sockets
import time
from typing import Any

import pytest
from tests.contract.port_contract import Events, push

from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Bye, Refused
from paceline.transport.base import Received
from paceline.transport.limits import LinkLimits
from paceline.transport.local import records
from paceline.transport.local.link import LocalLink, Locals
from paceline.transport.loop import Loop
from paceline.transport.memory.arena import Arena
from paceline.transport.memory.loans import Witness
from paceline.transport.sessions import Sessions
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.handshake import new_token
from paceline.wire.headers import encode_header


class End:
    """One side of a link, without a port."""

    def __init__(self, socket: sockets.socket, node: str, peer: str) -> None:
        socket.setblocking(False)
        self.loop = Loop()
        self.sessions = Sessions(node, b"x" * 32, LinkLimits())
        self.arena = Arena(share=True)
        self.over: list[str] = []
        shared = Locals(self.loop, self.sessions, self.arena)
        self.link = LocalLink(shared, socket, Witness(os.getpid()), peer, self.over.append)

    def close(self) -> None:
        self.link.close()
        self.arena.close()


def test_everything_that_a_closed_peer_has_sent_is_read() -> None:
    ours, theirs = sockets.socketpair()
    end = End(ours, "server/1", "worker/1")
    theirs.setblocking(False)
    sent = 0
    try:
        while sent < 200:
            theirs.sendall(records.message_record(encode_header(Refused(sent, "x", "d" * 700))))
            sent += 1
    except BlockingIOError:
        pass
    theirs.close()
    assert sent * 720 > 64 << 10, "more than is read at once"
    end.link.lost("closed")
    assert len(end.sessions.events) >= sent
    assert end.over == ["the connection was closed"]
    end.close()


def test_what_a_peer_never_began_to_read_comes_back_when_it_closes() -> None:
    ours, theirs = sockets.socketpair()
    lender, reader = End(ours, "worker/1", "server/1"), End(theirs, "server/1", "worker/1")
    loan = lender.link.send(encode_header(Bye(1)), [lender.arena.allocate(1 << 20)])
    assert not loan.done
    reader.close()
    assert not loan.done, "it is not known here yet"
    lender.link.lost("closed")
    assert loan.done
    lender.close()


def test_what_a_peer_may_still_read_is_not_taken_back_when_this_side_closes() -> None:
    ours, theirs = sockets.socketpair()
    lender, reader = End(ours, "worker/1", "server/1"), End(theirs, "server/1", "worker/1")
    loan = lender.link.send(encode_header(Bye(1)), [lender.arena.allocate(1 << 20)])
    lender.link.close()
    assert not loan.done
    reader.link.lost("closed")
    reader.sessions.events.clear()
    assert loan.done
    reader.close()
    lender.close()


def test_a_send_that_fails_ends_the_session_by_name() -> None:
    ours, theirs = sockets.socketpair()
    end = End(ours, "worker/1", "server/1")
    real: Any = end.link._out._socket

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def send(self, *_: object) -> int:
            raise OSError(errno.ENOBUFS, "no room")

        sendmsg = send

    end.link._out._socket = Broken()  # type: ignore[assignment]
    end.link.send(encode_header(Bye(1)), [])
    end.loop.wait(1.0)
    while end.loop.read_one():
        pass
    assert end.over == ["the connection was closed"]
    theirs.close()
    end.close()


@pytest.mark.parametrize("who", ["dialer", "listener"])
def test_a_peer_whose_memory_cannot_be_mapped_is_reached_by_tcp(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    token = new_token()
    server = ZmqPort("server/1", token, listen="127.0.0.1", local=True)
    worker = ZmqPort("worker/1", token, local=True)
    try:
        worker.connect(str(server.address))
        Events(server, worker).until_up((server, "worker/1"), (worker, "server/1"))

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOMEM, "no room to map it")

        monkeypatch.setattr("paceline.transport.local.reader.Mapping", refuse)
        sender, to, reader = (server, "worker/1", worker) if who == "dialer" else (worker, "server/1", server)
        frame = sender.memory.allocate(1 << 20)
        heard, until = False, time.monotonic() + 20.0
        while not heard and time.monotonic() < until:
            with contextlib.suppress(PeerUnknownError, PeerLostError):
                sender.send(to, push(1, [frame]), [frame])
            for port in (server, worker):
                event = port.recv(0.02)
                heard = heard or (port is reader and isinstance(event, Received))
        assert heard
    finally:
        worker.close()
        server.close()
