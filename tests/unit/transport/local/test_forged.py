"""A proven peer that says what it must not on a local link: refused by name, and never more than its session."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import random
import socket as sockets
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil
import pytest
from tests.contract.port_contract import Events, push
from tests.kit.peer import peer_process
from tests.kit.strangers import Stranger
from tests.unit.wire.test_headers import mutate

from paceline.messages import Ok
from paceline.transport.local import records
from paceline.transport.local.door import knock
from paceline.transport.memory import loans
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.handshake import ClientHandshake, Lane, encode_control, new_token
from paceline.wire.headers import encode_header

TOKEN = new_token()
TABLE_NBYTES = loans.SLOTS * 8
NBYTES = 1 << 16


class Forger:
    """Proves itself like any peer, and then writes what it wants into the local link."""

    def __init__(self, address: str, pump: Callable[[], object], node: str = "forger/1") -> None:
        self.stranger = Stranger(address, TOKEN).connect()
        handshake = ClientHandshake(node, TOKEN)
        self.stranger.send(handshake.hello())
        while handshake.welcome is None:
            answer = handshake.receive(self.stranger.answer(pump))
            if answer is not None:
                self.stranger.send(answer)
        assert handshake.welcome.offer is not None
        self.socket, _ = knock(handshake.welcome.offer)
        self.socket.settimeout(5.0)
        self.stranger.send(handshake.choose("local"))

    def send(self, record: bytes, fds: Sequence[int] = ()) -> None:
        rights = [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([record], rights)

    def memory(
        self,
        kind: int,
        number: int,
        nbytes: int,
        *,
        really: int | None = None,
        mode: int = 0o600,
        seals: int = fcntl.F_SEAL_SHRINK,
    ) -> None:
        """Announce memory; by default all of it is true."""
        fd = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
        os.fchmod(fd, mode)
        os.ftruncate(fd, nbytes if really is None else really)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        self.send(records.memory_record(kind, number, nbytes), [fd])
        os.close(fd)

    def descriptors(self) -> None:
        """More of them than anything announces."""
        for _ in range(3):
            self.send(records.memory_record(records.DROP, 99), [0, 1, 2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.socket.close()
        self.stranger.__exit__(None, None, None)


@pytest.fixture
def server() -> Iterator[ZmqPort]:
    port = ZmqPort("server/1", TOKEN, listen="127.0.0.1")
    yield port
    port.close()


@pytest.fixture
def forged(server: ZmqPort) -> Iterator[tuple[Forger, Events]]:
    events = Events(server)

    def pump() -> None:
        events.seen["server/1"].extend(filter(None, [server.recv(0)]))

    with Forger(str(server.address), pump) as forger:
        events.until(lambda: bool(events.ups(server)))
        yield forger, events


PUSH = encode_header(push(1, [memoryview(bytearray(100))]))


def message(*rows: records.Row, slot: int = 2, ticket: int = 1) -> bytes:
    return records.message_record(PUSH, rows, slot, ticket)


def test_an_honest_forger_is_heard(server: ZmqPort, forged: tuple[Forger, Events]) -> None:
    """The control of the tests below: the same words, all of them true."""
    forger, events = forged
    forger.memory(records.TABLE, 0, TABLE_NBYTES)
    forger.memory(records.SEGMENT, 4, NBYTES)
    forger.send(message((4, NBYTES - 100, 100)))
    events.until(lambda: bool(events.received(server)))
    assert bytes(events.received(server)[0].frames[0]) == bytes(100)
    assert server.counters.refused == {}


FORGED: dict[str, tuple[str, Callable[[Forger], None]]] = {
    "a segment nobody announced": ("reference", lambda f: f.send(message((5, 0, 100)))),
    "the end of a segment": ("reference", lambda f: f.send(message((4, NBYTES - 99, 100)))),
    "far beyond": ("reference", lambda f: f.send(message((4, (1 << 64) - 50, 100)))),
    "slot 0": ("reference", lambda f: f.send(message((4, 0, 100), slot=0))),
    "the word that says who has the table": ("reference", lambda f: f.send(message((4, 0, 100), slot=1))),
    "a slot beyond the table": ("reference", lambda f: f.send(message((4, 0, 100), slot=loans.SLOTS))),
    "a ticket of before": ("reference", lambda f: f.send(message((4, 0, 100), ticket=0))),
    "an absurd ticket": ("reference", lambda f: f.send(message((4, 0, 100), ticket=1 << 63))),
    "a frame too large": ("frame-cap", lambda f: f.send(message((records.INLINE, 0, 1 << 40)))),
    "a message too large": ("message-cap", lambda f: f.send(message(*[(4, 0, 60 << 20)] * 20))),
    "too many frames": (
        "frame-count",
        lambda f: f.send(struct.pack("=B3xIIIQQ", records.MESSAGE, 0, 1 << 31, 0, 0, 0)),
    ),
    "a huge header": ("header-size", lambda f: f.send(struct.pack("=B3xIIIQQ", records.MESSAGE, 1 << 31, 0, 0, 0, 0))),
    "no such record": ("record", lambda f: f.send(struct.pack("=B3xIIIQQ", 9, 0, 0, 0, 0, 0))),
    "rows where there are none": ("record", lambda f: f.send(struct.pack("=B3xIIIQQ", records.DROP, 0, 3, 0, 0, 0))),
    "no descriptor": ("segment", lambda f: f.send(records.memory_record(records.SEGMENT, 6, NBYTES))),
    "a segment twice": ("segment", lambda f: f.memory(records.SEGMENT, 4, NBYTES)),
    "a second table": ("segment", lambda f: f.memory(records.TABLE, 0, TABLE_NBYTES)),
    "another size": ("segment", lambda f: f.memory(records.SEGMENT, 6, NBYTES, really=NBYTES - 4096)),
    "no size": ("segment", lambda f: f.memory(records.SEGMENT, 6, 0)),
    "open to others": ("segment", lambda f: f.memory(records.SEGMENT, 6, NBYTES, mode=0o644)),
    "not sealed": ("segment", lambda f: f.memory(records.SEGMENT, 6, NBYTES, seals=0)),
    "descriptors that nothing announces": ("segment", Forger.descriptors),
    "a control frame out of turn": (
        "control",
        lambda f: f.send(records.control_record(encode_control(Lane("tcp")))),
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_is_forged_is_refused_by_name(server: ZmqPort, forged: tuple[Forger, Events], what: str) -> None:
    rule, say = FORGED[what]
    forger, events = forged
    forger.memory(records.TABLE, 0, TABLE_NBYTES)
    forger.memory(records.SEGMENT, 4, NBYTES)
    fds = len(os.listdir("/proc/self/fd"))
    say(forger)
    events.until(lambda: bool(events.downs(server)))
    assert events.downs(server)[0].reason.startswith(f"refused ({rule})")
    assert server.counters.refused == {rule: 1}
    assert not events.received(server)
    assert len(os.listdir("/proc/self/fd")) < fds  # its descriptors are not kept


def test_a_file_with_a_name_is_no_segment(server: ZmqPort, forged: tuple[Forger, Events], tmp_path: Path) -> None:
    forger, events = forged
    path = tmp_path / "file"
    path.write_bytes(bytes(NBYTES))
    path.chmod(0o600)
    with path.open("rb") as file:
        forger.send(records.memory_record(records.SEGMENT, 1, NBYTES), [file.fileno()])
    events.until(lambda: bool(events.downs(server)))
    assert server.counters.refused == {"segment": 1}


def test_messages_that_cross_lanes_are_dropped(server: ZmqPort, forged: tuple[Forger, Events]) -> None:
    forger, events = forged
    forger.stranger.send(encode_header(Ok(1)))
    events.until(lambda: server.counters.refused == {"lane": 1})
    forger.send(records.message_record(encode_header(Ok(2))))
    events.until(lambda: bool(events.received(server)))
    assert [e.message for e in events.received(server)] == [Ok(2)]


def test_a_message_may_come_byte_by_byte(server: ZmqPort, forged: tuple[Forger, Events]) -> None:
    forger, events = forged
    frames = [memoryview(os.urandom(n)) for n in (0, 1, 300)]
    sent = push(3, frames)
    record = records.message_record(encode_header(sent), [(records.INLINE, 0, frame.nbytes) for frame in frames])
    for byte in record + b"".join(frames) + records.message_record(encode_header(Ok(4))):
        forger.send(bytes([byte]))
        events.seen["server/1"].extend(filter(None, [server.recv(0)]))
    events.until(lambda: len(events.received(server)) == 2)
    assert [e.message for e in events.received(server)] == [sent, Ok(4)]
    assert [bytes(frame) for frame in events.received(server)[0].frames] == [bytes(frame) for frame in frames]


def test_a_live_process_survives_two_thousand_damaged_records() -> None:
    rng = random.Random(3)
    good = [
        records.message_record(encode_header(Ok(1))),
        message((4, 0, 100)),
        message((records.INLINE, 0, 100)) + bytes(100),
        records.memory_record(records.SEGMENT, 4, NBYTES),
        records.memory_record(records.DROP, 4),
    ]
    with peer_process(TOKEN, "listen", "0", "server/1") as (process, address):
        watched = psutil.Process(process.pid)
        size = 0
        for number in range(100):
            with (
                Forger(address, lambda: None, f"forger/{number}") as forger,
                contextlib.suppress(ConnectionError),  # it has had enough of this one
            ):
                forger.memory(records.TABLE, 0, TABLE_NBYTES)
                forger.memory(records.SEGMENT, 4, NBYTES)
                for _ in range(20):
                    forger.send(mutate(rng.choice(good), rng), [0] if rng.random() < 0.05 else ())
            if number == 10:
                size = watched.memory_info().rss
        assert process.poll() is None
        assert watched.memory_info().rss - size < 20 << 20
        assert watched.num_fds() < 60
        client = ZmqPort("client/1", TOKEN)
        client.connect(address)
        events = Events(client)
        events.until_up((client, "server/1"))
        client.send("server/1", Ok(9))
        events.until(lambda: bool(events.received(client)))
        client.close()
