"""A session on a sealed connection, with somebody in the middle who sees and changes every byte."""

from __future__ import annotations

import socket as sockets
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.contract.port_contract import block_bytes, push

from paceline.messages import Ok, Push
from paceline.transport.base import Received
from paceline.transport.limits import LinkLimits
from paceline.transport.loop import Loop
from paceline.transport.sealed.channel import Buffers, SealedChannel
from paceline.transport.sessions import Sessions
from paceline.transport.streams.link import StreamLink, StreamLinks
from paceline.wire.headers import encode_header
from paceline.wire.seal import PREFIX_NBYTES, TAG_NBYTES

KEYS = bytes(range(32)), bytes(range(32, 64))
Chunk = bytes
Attack = Callable[[list[Chunk]], list[Chunk]]


class End:
    """One side of a session, without a port."""

    def __init__(self, socket: sockets.socket, sending: bytes, receiving: bytes, *, clear_blocks: bool) -> None:
        socket.setblocking(False)
        self.loop = Loop()
        self.sessions = Sessions("server/1", b"x" * 32, LinkLimits())
        self.over: list[str] = []
        self.buffers = Buffers()
        links = StreamLinks(self.loop, self.sessions, share=False)
        self.arena = links.arena
        channel = SealedChannel(socket, sending, receiving, self.buffers, clear_blocks=clear_blocks)
        self.link = StreamLink(links, channel, None, "worker/1", self.over.append)

    def run(self) -> list[Received]:
        """Read all that has come; returns the messages so far."""
        for _ in range(3):
            self.loop.wait(0.01)
            while self.loop.read_one():
                pass
        return [event for event in self.sessions.events if isinstance(event, Received)]

    def close(self) -> None:
        self.link.close()
        self.arena.close()


def chunks(stream: bytes, *, clear_blocks: bool = False) -> list[Chunk]:
    """Cut what one side sent into its chunks."""
    found = []
    while stream:
        kind, nbytes, _ = struct.unpack_from("!B3xIQ", stream)
        size = PREFIX_NBYTES + nbytes + (TAG_NBYTES if kind == 1 else 0)
        assert kind == 1 or clear_blocks
        found.append(stream[:size])
        stream = stream[size:]
    return found


class Middle:
    """Two sides of a session; every byte of the first waits here until the test passes it on."""

    def __init__(self, *, clear_blocks: bool = False) -> None:
        self._clear_blocks = clear_blocks
        ours, self._from_worker = tcp_pair()
        theirs, self._to_server = tcp_pair()
        self.worker = End(ours, *KEYS, clear_blocks=clear_blocks)
        self.server = End(theirs, *reversed(KEYS), clear_blocks=clear_blocks)
        self._from_worker.settimeout(0.05)

    def sent(self, nbytes: int = 1) -> list[Chunk]:
        """The chunks that the worker has sent, at least `nbytes` bytes."""
        stream = b""
        while True:
            self.worker.run()
            try:
                stream += self._from_worker.recv(1 << 20)
            except TimeoutError:
                if len(stream) >= nbytes and self.worker.link.flushed:
                    return chunks(stream, clear_blocks=self._clear_blocks)

    def deliver(self, passed: list[Chunk]) -> list[Received]:
        self._to_server.sendall(b"".join(passed))
        return self.server.run()

    def close(self) -> None:
        self.worker.close()
        self.server.close()
        self._from_worker.close()
        self._to_server.close()


def tcp_pair() -> tuple[sockets.socket, sockets.socket]:
    with sockets.create_server(("127.0.0.1", 0)) as listener:
        near = sockets.create_connection(listener.getsockname())
        return near, listener.accept()[0]


@contextmanager
def middle(*, clear_blocks: bool = False) -> Iterator[Middle]:
    made = Middle(clear_blocks=clear_blocks)
    try:
        yield made
    finally:
        made.close()


def two_blocks(nbytes: int = 20_000) -> tuple[Push, list[memoryview]]:
    frames = [block_bytes(nbytes, seed) for seed in (1, 2)]
    return push(1, frames), frames


# ---------------------------------------------------------------- what arrives


@pytest.mark.parametrize("clear_blocks", [False, True])
@pytest.mark.parametrize("nbytes", [1, 300, 20_000, (256 << 10) + 1])
def test_messages_arrive_as_they_were_sent(nbytes: int, clear_blocks: bool) -> None:
    with middle(clear_blocks=clear_blocks) as m:
        message, frames = two_blocks(nbytes)
        m.worker.link.send(encode_header(message), frames)
        m.worker.link.send(encode_header(Ok(7)), ())
        first, second = m.deliver(m.sent(2 * nbytes))
        assert [bytes(frame) for frame in first.frames] == [bytes(frame) for frame in frames]
        assert (first.message, second.message) == (message, Ok(7))
        assert not m.server.sessions.counters.refused


@pytest.mark.parametrize("clear_blocks", [False, True])
def test_bytes_that_come_one_by_one_are_put_together(clear_blocks: bool) -> None:
    with middle(clear_blocks=clear_blocks) as m:
        message, frames = two_blocks(40)
        m.worker.link.send(encode_header(message), frames)
        stream = b"".join(m.sent())
        for position in range(len(stream)):
            assert not m.server.sessions.events
            m._to_server.sendall(stream[position : position + 1])
            m.server.loop.wait(0.05)
            while m.server.loop.read_one():
                pass
        assert [event.message for event in m.server.run()] == [message]


def test_an_idle_channel_holds_no_buffer() -> None:
    with middle() as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        assert len(m.deliver(m.sent())) == 1
        assert m.server.link._channel._in._received is None  # type: ignore[attr-defined]
        assert m.worker.link._channel._out._buffer is None  # type: ignore[attr-defined]
        assert len(m.server.buffers._free) == len(m.worker.buffers._free) == 1


def test_nothing_of_a_message_can_be_read_on_its_way() -> None:
    with middle() as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        stream = b"".join(m.sent())
        assert bytes(frames[0][:16]) not in stream
        assert encode_header(message)[:16] not in stream


# ---------------------------------------------------------------- attacks

ATTACKS: dict[str, tuple[Attack, str]] = {
    "a bit of the header is flipped": (lambda c: [_flip(c[0], 20), *c[1:]], "seal"),
    "a bit of a block is flipped": (lambda c: [*c[:-1], _flip(c[-1], 5000)], "seal"),
    "a bit of a tag is flipped": (lambda c: [*c[:-1], _flip(c[-1], -1)], "seal"),
    "the blocks are swapped": (lambda c: [c[0], c[2], c[1]], "seal-order"),
    "the blocks are swapped under their numbers": (lambda c: [c[0], *_swapped(c[1], c[2])], "seal"),
    "a chunk is repeated": (lambda c: [c[0], c[0]], "seal-order"),
    "a chunk is left out": (lambda c: [c[0], c[2]], "seal-order"),
    "the header is left out": (lambda c: c[1:], "seal-order"),
    "a block is cut": (lambda c: [c[0], _cut(c[1]), c[2]], "seal"),
    "a block comes unsealed": (lambda c: [c[0], b"\x02" + c[1][1:]], "seal"),
    "garbage": (lambda c: [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], "seal"),
}


def _flip(chunk: Chunk, at: int) -> Chunk:
    changed = bytearray(chunk)
    changed[at] ^= 4
    return bytes(changed)


def _swapped(first: Chunk, second: Chunk) -> list[Chunk]:
    return [first[:PREFIX_NBYTES] + second[PREFIX_NBYTES:], second[:PREFIX_NBYTES] + first[PREFIX_NBYTES:]]


def _cut(chunk: Chunk) -> Chunk:
    kind, nbytes, number = struct.unpack_from("!B3xIQ", chunk)
    return struct.pack("!B3xIQ", kind, nbytes - 100, number) + chunk[PREFIX_NBYTES:-100]


@pytest.mark.parametrize("what", ATTACKS)
def test_an_attack_is_refused_by_name_and_nothing_is_delivered(what: str) -> None:
    attack, rule = ATTACKS[what]
    with middle() as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        sent = m.sent()
        assert len(sent) == 3, "the header and two blocks"
        assert m.deliver(attack(sent)) == []
        assert m.server.sessions.counters.refused == {rule: 1}
        assert [reason for reason in m.server.over if f"refused ({rule})" in reason]


def test_a_message_is_not_accepted_twice() -> None:
    with middle() as m:
        m.worker.link.send(encode_header(Ok(1)), ())
        sent = m.sent()
        assert len(m.deliver(sent)) == 1
        assert len(m.deliver(sent)) == 1
        assert m.server.sessions.counters.refused == {"seal-order": 1}


def test_a_block_does_not_move_to_another_message() -> None:
    with middle() as m:
        for seed in (1, 2):
            frames = [block_bytes(20_000, seed)]
            m.worker.link.send(encode_header(push(seed, frames)), frames)
        head_1, block_1, head_2, block_2 = m.sent(40_000)
        moved_1, moved_2 = _swapped(block_1, block_2)
        assert m.deliver([head_1, moved_1, head_2, moved_2]) == []
        assert m.server.sessions.counters.refused == {"seal": 1}


def test_what_a_side_sent_is_not_accepted_by_itself() -> None:
    with middle() as m:
        m.worker.link.send(encode_header(Ok(1)), ())
        m._from_worker.sendall(b"".join(m.sent()))
        assert m.worker.run() == []
        assert m.worker.sessions.counters.refused == {"seal": 1}


def test_a_message_that_is_cut_off_is_not_delivered() -> None:
    with middle() as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        sent = m.sent()
        m.deliver([*sent[:-1], sent[-1][:-1]])
        m._to_server.shutdown(sockets.SHUT_WR)
        assert m.server.run() == []
        assert m.server.over == ["the connection was closed"]


# ---------------------------------------------------------------- insecure blocks


def test_insecure_blocks_are_readable_and_headers_are_not() -> None:
    with middle(clear_blocks=True) as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        stream = b"".join(m.sent())
        assert bytes(frames[0]) + bytes(frames[1]) in stream
        assert encode_header(message)[:16] not in stream


def test_insecure_blocks_can_be_changed_and_headers_cannot() -> None:
    with middle(clear_blocks=True) as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        head, blocks = m.sent()
        (event,) = m.deliver([head, _flip(blocks, 5000)])
        assert bytes(event.frames[0]) != bytes(frames[0]), "this is what insecure blocks give up"
        m.worker.link.send(encode_header(Ok(2)), ())
        assert len(m.deliver([_flip(m.sent()[0], 20)])) == 1
        assert m.server.sessions.counters.refused == {"seal": 1}


def test_a_header_that_comes_unsealed_is_refused() -> None:
    with middle(clear_blocks=True) as m:
        record = b"a record that nobody has sealed"
        assert m.deliver([struct.pack("!B3xIQ", 2, len(record), 0) + record]) == []
        assert m.server.sessions.counters.refused == {"seal": 1}
        assert not m.server.sessions.events


# ---------------------------------------------------------------- the end of a peer


def test_bytes_that_are_still_on_their_way_when_the_peer_is_lost_are_read() -> None:
    """The news comes on another connection, so it may be faster than the last message."""
    with middle() as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        head, *rest = m.sent()
        m.deliver([head])
        m.server.link.lost("the peer is gone")
        assert m.server.over == []
        assert [event.message for event in m.deliver(rest)] == [message]
        m._to_server.shutdown(sockets.SHUT_WR)
        m.server.run()
        assert m.server.over == ["the connection was closed"]


def test_a_link_that_ends_closes_after_its_peer_which_reads_the_end() -> None:
    with middle() as m:
        message, frames = two_blocks(1 << 20)
        m.worker.link.send(encode_header(message), frames)
        while not m.worker.link.flushed:
            m._from_worker.recv(1 << 16)
            m.worker.run()
        m.worker.link.finish(60.0)
        assert m.worker.link in m.worker.link._links.links, "the peer does not have all bytes yet"
        m._from_worker.settimeout(10.0)
        while m._from_worker.recv(1 << 20):
            pass
        m._from_worker.close()
        m.worker.run()
        assert not m.worker.link._links.links


def test_the_last_bytes_of_a_lost_peer_are_read_even_if_the_role_comes_back_late() -> None:
    """They came in time, and the role was busy until the time was over."""
    with middle() as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        head, *rest = m.sent()
        m.deliver([head])
        m.server.link.lost("the peer is gone")
        m._to_server.sendall(b"".join(rest))
        m.server.link._links.tick(m.server.link.close_at)
        assert [event.message for event in m.server.sessions.events if isinstance(event, Received)] == [message]
        assert m.server.over == [], "more may be on its way"
        m.server.link._links.tick(m.server.link.close_at)
        assert m.server.over == ["the peer is gone"]


def test_each_byte_of_a_lost_peer_gives_it_more_time() -> None:
    with middle() as m:
        message, frames = two_blocks()
        m.worker.link.send(encode_header(message), frames)
        first, *rest = m.sent()
        m.server.link.lost("the peer is gone")
        for part in (first, *rest):
            before = m.server.link.close_at
            m.deliver([part])
            assert m.server.link.close_at > before
        before = m.server.link.close_at
        m.server.run()
        assert m.server.link.close_at == before


def test_a_lost_peer_is_not_awaited_for_long() -> None:
    with middle() as m:
        m.server.link.lost("the peer is gone")
        m.server.link.lost("once more")
        now = m.server.loop.now()
        assert now < m.server.link.close_at < now + 1.0
        m.server.link._links.tick(m.server.link.close_at)
        assert m.server.over == ["the peer is gone"]
