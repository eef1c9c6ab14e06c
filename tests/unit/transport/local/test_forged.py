"""A proven peer sends forged records on a local link: they are refused by name, and only its session ends."""

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
from tests.kit.damage import mutate
from tests.kit.peer import peer_process
from tests.kit.strangers import Stranger

from paceline.messages import Ok
from paceline.transport.local.listener import connect
from paceline.transport.memory import loans
from paceline.transport.streams import records
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.handshake import ClientHandshake, Lane, encode_control
from paceline.wire.headers import encode_header
from paceline.wire.token import new_token

TOKEN = new_token()
TABLE_NBYTES = loans.CELLS * 8
NBYTES = 1 << 16


class Forger:
    """A peer that proves itself like any other and then writes arbitrary bytes into the local link."""

    def __init__(self, address: str, pump: Callable[[], object], node: str = "forger/1") -> None:
        self.stranger = Stranger(address, TOKEN).connect()
        handshake = ClientHandshake(node, TOKEN)
        self.stranger.send(handshake.hello())
        while handshake.accepted is None:
            answer = handshake.receive(self.stranger.answer(pump))
            if answer is not None:
                self.stranger.send(answer)
        assert handshake.accepted.offer is not None
        self.socket, _ = connect(handshake.accepted.offer)
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
        """Announce memory; without options the announcement is true."""
        fd = os.memfd_create("forged", os.MFD_ALLOW_SEALING)
        os.fchmod(fd, mode)
        os.ftruncate(fd, nbytes if really is None else really)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        self.send(records.memory_record(kind, number, nbytes), [fd])
        os.close(fd)

    def descriptors(self) -> None:
        """Send descriptors with records that announce none."""
        for _ in range(3):
            self.send(records.memory_record(records.DROP, 99), [0, 1, 2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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


def message(*rows: records.Row, cell: int = 2, serial: int = 1) -> bytes:
    return records.message_record(PUSH, rows, cell, serial)


def test_records_without_a_forgery_are_accepted(server: ZmqPort, forged: tuple[Forger, Events]) -> None:
    """The control of the tests below: the same records without a false field."""
    forger, events = forged
    forger.memory(records.TABLE, 0, TABLE_NBYTES)
    forger.memory(records.SHARED_FILE, 4, NBYTES)
    forger.send(message((4, NBYTES - 100, 100)))
    events.until(lambda: bool(events.received(server)))
    assert bytes(events.received(server)[0].frames[0]) == bytes(100)
    assert server.counters.refused == {}


FORGED: dict[str, tuple[str, Callable[[Forger], None]]] = {
    "a shared file that was not announced": ("reference", lambda f: f.send(message((5, 0, 100)))),
    "beyond the end of a shared file": ("reference", lambda f: f.send(message((4, NBYTES - 99, 100)))),
    "an offset that wraps": ("reference", lambda f: f.send(message((4, (1 << 64) - 50, 100)))),
    "the word of unread loans as a cell": ("reference", lambda f: f.send(message((4, 0, 100), cell=0))),
    "the word of the mapped table as a cell": ("reference", lambda f: f.send(message((4, 0, 100), cell=1))),
    "a cell beyond the table": ("reference", lambda f: f.send(message((4, 0, 100), cell=loans.CELLS))),
    "an earlier serial number": ("reference", lambda f: f.send(message((4, 0, 100), serial=0))),
    "a negative serial number": ("reference", lambda f: f.send(message((4, 0, 100), serial=1 << 63))),
    "a frame too large": ("frame-cap", lambda f: f.send(message((records.INLINE, 0, 1 << 40)))),
    "a message too large": ("message-cap", lambda f: f.send(message(*[(4, 0, 60 << 20)] * 20))),
    "too many frames": (
        "frame-count",
        lambda f: f.send(struct.pack("=B3xIIIQQ", records.MESSAGE, 0, 1 << 31, 0, 0, 0)),
    ),
    "a huge header": ("header-size", lambda f: f.send(struct.pack("=B3xIIIQQ", records.MESSAGE, 1 << 31, 0, 0, 0, 0))),
    "an unknown kind of record": ("record", lambda f: f.send(struct.pack("=B3xIIIQQ", 9, 0, 0, 0, 0, 0))),
    "rows in a record that has none": (
        "record",
        lambda f: f.send(struct.pack("=B3xIIIQQ", records.DROP, 0, 3, 0, 0, 0)),
    ),
    "a shared file without a descriptor": (
        "shared-file",
        lambda f: f.send(records.memory_record(records.SHARED_FILE, 6, NBYTES)),
    ),
    "a shared file twice": ("shared-file", lambda f: f.memory(records.SHARED_FILE, 4, NBYTES)),
    "a second table": ("shared-file", lambda f: f.memory(records.TABLE, 0, TABLE_NBYTES)),
    "a size that is not announced": (
        "shared-file",
        lambda f: f.memory(records.SHARED_FILE, 6, NBYTES, really=NBYTES - 4096),
    ),
    "a shared file of no bytes": ("shared-file", lambda f: f.memory(records.SHARED_FILE, 6, 0)),
    "open to other users": ("shared-file", lambda f: f.memory(records.SHARED_FILE, 6, NBYTES, mode=0o644)),
    "not sealed against shrinking": ("shared-file", lambda f: f.memory(records.SHARED_FILE, 6, NBYTES, seals=0)),
    "descriptors without a record": ("shared-file", Forger.descriptors),
    "a control frame within a session": (
        "control",
        lambda f: f.send(records.control_record(encode_control(Lane("tcp")))),
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_record_is_refused_by_name(server: ZmqPort, forged: tuple[Forger, Events], what: str) -> None:
    rule, forge = FORGED[what]
    forger, events = forged
    forger.memory(records.TABLE, 0, TABLE_NBYTES)
    forger.memory(records.SHARED_FILE, 4, NBYTES)
    fds = len(os.listdir("/proc/self/fd"))
    forge(forger)
    events.until(lambda: bool(events.downs(server)))
    assert events.downs(server)[0].reason.startswith(f"refused ({rule})")
    assert server.counters.refused == {rule: 1}
    assert not events.received(server)
    assert len(os.listdir("/proc/self/fd")) < fds  # the process has closed the forger's descriptors


def test_a_file_with_a_name_is_refused(server: ZmqPort, forged: tuple[Forger, Events], tmp_path: Path) -> None:
    forger, events = forged
    path = tmp_path / "file"
    path.write_bytes(bytes(NBYTES))
    path.chmod(0o600)
    with path.open("rb") as file:
        forger.send(records.memory_record(records.SHARED_FILE, 1, NBYTES), [file.fileno()])
    events.until(lambda: bool(events.downs(server)))
    assert server.counters.refused == {"shared-file": 1}


def test_a_message_by_tcp_is_dropped_in_a_session_that_goes_by_the_local_link(
    server: ZmqPort, forged: tuple[Forger, Events]
) -> None:
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
        records.memory_record(records.SHARED_FILE, 4, NBYTES),
        records.memory_record(records.DROP, 4),
    ]
    with peer_process(TOKEN, "listen", "0", "server/1") as (process, address):
        watched = psutil.Process(process.pid)
        size = 0
        for number in range(100):
            with (
                Forger(address, lambda: None, f"forger/{number}") as forger,
                contextlib.suppress(ConnectionError),  # the process has closed this link
            ):
                forger.memory(records.TABLE, 0, TABLE_NBYTES)
                forger.memory(records.SHARED_FILE, 4, NBYTES)
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
