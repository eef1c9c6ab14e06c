"""How a local link ends: everything that was sent is read, every loan ends, and every failure is reported."""

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
from paceline.transport.loop import Loop
from paceline.transport.memory.loans import PeerProcess
from paceline.transport.sessions import Sessions
from paceline.transport.streams import records
from paceline.transport.streams.channel import UnixChannel
from paceline.transport.streams.link import StreamLink, StreamLinks
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.headers import encode_header
from paceline.wire.token import new_token


class End:
    """One side of a link, without a port."""

    def __init__(self, socket: sockets.socket, node: str, peer: str) -> None:
        socket.setblocking(False)
        self.loop = Loop()
        self.sessions = Sessions(node, b"x" * 32, LinkLimits())
        self.over: list[str] = []
        links = StreamLinks(self.loop, self.sessions)
        self.arena = links.arena
        self.link = StreamLink(links, UnixChannel(socket), PeerProcess(os.getpid()), peer, self.over.append)

    def close(self) -> None:
        self.link.close()
        self.arena.close()


def test_everything_that_the_peer_sent_before_it_closed_is_read() -> None:
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
    assert sent * 720 > 64 << 10, "the peer sent more than one call reads"
    end.link.lost("closed")
    assert len(end.sessions.events) >= sent
    assert end.over == ["the connection was closed"]
    end.close()


def test_messages_that_wait_go_with_the_next_one_in_one_write() -> None:
    ours, theirs = sockets.socketpair()
    sender, reader = End(ours, "worker/1", "server/1"), End(theirs, "server/1", "worker/1")
    frame = sender.arena.allocate(1000)
    loan = sender.link.send(encode_header(push(1, [frame])), [frame], later=True)
    assert not sender.link.flushed
    while reader.loop.read_one():  # the table of loans
        pass
    assert not reader.sessions.events, "the message has not been sent"
    writes: list[int] = []
    real = sender.link._out._channel.write_record

    def write(record: bytes) -> int:
        writes.append(len(record))
        return real(record)

    sender.link._out._channel.write_record = write  # type: ignore[method-assign]
    sender.link.send(encode_header(Bye(2)), [])
    assert len(writes) == 1
    assert sender.link.flushed
    while len(reader.sessions.events) < 2:
        reader.loop.wait(1.0)
        assert reader.loop.read_one()
    messages = [event.message for event in reader.sessions.events if isinstance(event, Received)]
    assert messages == [push(1, [frame]), Bye(2)]
    reader.sessions.events.clear()
    assert loan.done
    sender.close()
    reader.close()


def test_a_loan_that_the_peer_never_read_ends_when_the_peer_closes() -> None:
    ours, theirs = sockets.socketpair()
    lender, reader = End(ours, "worker/1", "server/1"), End(theirs, "server/1", "worker/1")
    loan = lender.link.send(encode_header(Bye(1)), [lender.arena.allocate(1 << 20)])
    assert not loan.done
    reader.close()
    assert not loan.done, "the lender does not know yet that the peer has closed"
    lender.link.lost("closed")
    assert loan.done
    lender.close()


def test_a_loan_that_the_peer_may_still_read_does_not_end_when_the_lender_closes() -> None:
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


def test_a_send_that_fails_ends_the_session_and_is_reported() -> None:
    ours, theirs = sockets.socketpair()
    end = End(ours, "worker/1", "server/1")
    real: Any = end.link._out._channel

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def write(self, *_: object) -> int:
            raise OSError(errno.ENOBUFS, "no buffer")

        write_record = write

    end.link._out._channel = Broken()
    end.link.send(encode_header(Bye(1)), [])
    end.loop.wait(1.0)
    while end.loop.read_one():
        pass
    assert end.over == ["the connection was closed"]
    theirs.close()
    end.close()


@pytest.mark.parametrize("reads", ["dialer", "listener"])
def test_a_session_goes_by_tcp_if_the_memory_of_the_peer_cannot_be_mapped(
    reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = new_token()
    server = ZmqPort("server/1", token, listen="127.0.0.1", local=True)
    worker = ZmqPort("worker/1", token, local=True)
    try:
        worker.connect(str(server.address))
        Events(server, worker).until_up((server, "worker/1"), (worker, "server/1"))

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOMEM, "no memory to map it")

        monkeypatch.setattr("paceline.transport.streams.reader.Mapping", refuse)
        sender, to, reader = (server, "worker/1", worker) if reads == "dialer" else (worker, "server/1", server)
        frame = sender.memory.allocate(1 << 20)
        received, until = False, time.monotonic() + 20.0
        while not received and time.monotonic() < until:
            with contextlib.suppress(PeerUnknownError, PeerLostError):
                sender.send(to, push(1, [frame]), [frame])
            for port in (server, worker):
                event = port.recv(0.02)
                received = received or (port is reader and isinstance(event, Received))
        assert received
    finally:
        worker.close()
        server.close()
