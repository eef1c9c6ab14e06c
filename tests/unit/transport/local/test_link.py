"""Sessions between processes of one host: references instead of bytes, and loans that end as they must."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket as sockets
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from tests.contract.port_contract import Events, block_bytes, push
from tests.kit.peer import DROP, FORK, KEEP, pattern, peer_process

from paceline.config.load import LANE, local_lane
from paceline.errors import PeerLostError, UsageError
from paceline.messages import Ok, Pull, PullReply, Push, PushAck
from paceline.transport.base import Delivery, Received
from paceline.transport.limits import LinkLimits
from paceline.transport.local import door as local_door
from paceline.transport.local.door import LocalLaneError
from paceline.transport.memory import loans, shared_files
from paceline.transport.zmq import dial
from paceline.transport.zmq.port import ZmqPort
from paceline.types import Fence
from paceline.wire.handshake import Offer, new_token

TOKEN = new_token()
MIB = 1 << 20
MakePort = Callable[..., ZmqPort]


@pytest.fixture
def make_port() -> Iterator[MakePort]:
    made: list[ZmqPort] = []

    def make(node: str, **options: object) -> ZmqPort:
        made.append(ZmqPort(node, TOKEN, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for port in made:
        port.close()


class Talk:
    """A port here and a peer process that has connected to it."""

    def __init__(self, port: ZmqPort, pid: int) -> None:
        self.port = port
        self.process = psutil.Process(pid)
        self.events = Events(port)
        self.events.until_up((port, "worker/1"))
        self._req = 0

    def ask(self, block: int) -> None:
        """Have the peer do something, and wait until it has."""
        self._req += 1
        self.port.send("worker/1", Pull(self._req, 0, 0, 1, blocks=(block,)))
        self.events.until(lambda: any(e.message == Ok(self._req) for e in self.events.received(self.port)))

    def push(self, frames: list[memoryview], slot: int = 0) -> Delivery:
        """Send frames, and check that they arrived."""
        self._req += 1
        message = push(self._req, frames)
        message = Push(message.req, 0, 0, 0, slot, Fence(1, 1), 0, message.blocks)
        delivery = self.port.send("worker/1", message, frames)
        expected = PushAck(self._req, ",".join(str(zlib.crc32(frame)) for frame in frames))
        self.events.until(lambda: any(e.message == expected for e in self.events.received(self.port)))
        self.events.forget()
        return delivery

    def until_done(self, delivery: Delivery) -> None:
        self.events.until(lambda: delivery.done)


@pytest.fixture
def talk(make_port: MakePort) -> Iterator[Talk]:
    server = make_port("server/1", listen="127.0.0.1")
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        yield Talk(server, process.pid)


def is_local(port: ZmqPort) -> bool:
    return port._locals is not None and bool(port._locals.links)


def rss_kib(pid: int, kind: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(f"Rss{kind}:")))


def rooms_of(port: ZmqPort, count: int, nbytes: int = MIB) -> list[memoryview]:
    rooms = [port.memory.allocate(nbytes) for _ in range(count)]
    for seed, room in enumerate(rooms):
        room[:] = block_bytes(nbytes, seed)
    return rooms


# ---------------------------------------------------------------- references


def test_processes_of_one_host_have_a_local_link(talk: Talk) -> None:
    assert is_local(talk.port)
    for req in range(200):
        talk.port.send("worker/1", Ok(1000 + req))
        talk.events.until(lambda: any(e.message == Ok(1000 + req) for e in talk.events.received(talk.port)))  # noqa: B023
        talk.events.forget()


def test_a_hundred_megabytes_are_read_in_place(talk: Talk) -> None:
    frames = rooms_of(talk.port, 100)
    talk.push(rooms_of(talk.port, 1))  # everything is set up
    anonymous, shared = rss_kib(talk.process.pid, "Anon"), rss_kib(talk.process.pid, "Shmem")
    delivery = talk.push(frames, slot=KEEP)
    assert rss_kib(talk.process.pid, "Anon") - anonymous < 4 << 10
    assert rss_kib(talk.process.pid, "Shmem") - shared > 95 << 10
    assert not delivery.done
    talk.ask(DROP)
    talk.until_done(delivery)


def test_both_see_the_same_memory(make_port: MakePort) -> None:
    """Not a copy: what the lender writes against the rule is what the reader sees."""
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    (room,) = rooms_of(client, 1)
    client.send("server/1", push(1, [room]), [room])
    events.until(lambda: bool(events.received(server)))
    frame = events.received(server)[0].frames[0]
    tensor = torch.frombuffer(frame, dtype=torch.uint8)
    assert tensor.data_ptr() == ctypes.addressof(ctypes.c_char.from_buffer(frame))
    room[5] = 77
    assert frame[5] == tensor[5] == 77


def test_a_reader_cannot_write(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        talk = Talk(server, process.pid)
        talk.push(rooms_of(server, 1), slot=KEEP)
        maps = [
            line.split()[1] for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines() if "blocks" in line
        ]
    assert maps == ["r--s"]


def test_tensors_over_frames_hold_them(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    rooms = rooms_of(client, 3)
    delivery = client.send("server/1", push(1, rooms), rooms)
    events.until(lambda: bool(events.received(server)))
    tensor = torch.frombuffer(events.received(server)[0].frames[1], dtype=torch.float32)[7:9]
    events.forget()
    assert not delivery.done
    assert tensor.view(torch.uint8).tolist() == list(rooms[1][28:36])
    del tensor
    assert delivery.done


def test_frames_of_several_segments_and_of_none(talk: Talk) -> None:
    frames = rooms_of(talk.port, 2, 40 * MIB)  # each needs a segment
    frames[1:1] = [block_bytes(5000), memoryview(bytearray()), block_bytes(2 * MIB), memoryview(b"read-only")]
    delivery = talk.push([frame[:MIB] for frame in frames], slot=KEEP)
    assert not delivery.done
    talk.ask(DROP)
    talk.until_done(delivery)


def test_a_loan_ends_with_its_last_segment(make_port: MakePort) -> None:
    server, client, events = both_up(make_port)
    rooms = [client.memory.allocate(40 * MIB) for _ in range(3)]  # a segment each
    delivery = client.send("server/1", push(1, rooms), rooms)
    events.until(lambda: bool(events.received(server)))
    frames = list(events.received(server)[0].frames)
    events.forget()
    while frames:
        assert not delivery.done
        frames.pop()
    assert delivery.done


def test_bytes_that_are_not_in_shared_memory_arrive_too(talk: Talk) -> None:
    """A model of 100 MB in private memory, several times over: the reader uses its memory again."""
    frames = [block_bytes(MIB, seed) for seed in range(100)]
    sizes = []
    for _ in range(4):
        talk.until_done(talk.push(frames))
        sizes.append(talk.process.memory_info().rss)
    assert max(sizes) - sizes[0] < 20 * MIB


# ---------------------------------------------------------------- loans


def test_a_room_is_used_again_only_when_the_reader_let_go(talk: Talk) -> None:
    (room,) = rooms_of(talk.port, 1, 40 * MIB)
    where = ctypes.addressof(ctypes.c_char.from_buffer(room))
    talk.push([room], slot=KEEP)
    del room  # nobody here asks for the delivery either
    others = [talk.port.memory.allocate(40 * MIB) for _ in range(3)]
    assert where not in [ctypes.addressof(ctypes.c_char.from_buffer(other)) for other in others]
    del others
    talk.ask(DROP)
    talk.events.until(lambda: talk.port.recv(0.01) is None)
    others = [talk.port.memory.allocate(40 * MIB) for _ in range(3)]
    assert where in [ctypes.addressof(ctypes.c_char.from_buffer(other)) for other in others]


def test_a_killed_reader_has_let_go(talk: Talk) -> None:
    rooms = rooms_of(talk.port, 4)
    deliveries = [talk.push(rooms, slot=KEEP), talk.push(rooms[:1], slot=KEEP)]
    assert not any(delivery.done for delivery in deliveries)
    talk.process.kill()
    deadline = time.monotonic() + 2.0
    while not all(delivery.done for delivery in deliveries):  # no event is received meanwhile
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_frames_outlive_a_killed_lender(talk: Talk) -> None:
    talk.port.send("worker/1", Pull(1, 0, 0, 1, blocks=(32 * MIB,)))
    talk.events.until(lambda: bool(talk.events.received(talk.port)))
    reply = talk.events.received(talk.port)[0]
    assert isinstance(reply.message, PullReply)
    frame = reply.frames[0]
    talk.process.kill()
    talk.events.until(lambda: bool(talk.events.downs(talk.port)))
    talk.port.close()
    assert frame == pattern(32 * MIB)


def test_loans_outlive_the_session(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    rooms = rooms_of(client, 2)
    delivery = client.send("server/1", push(1, rooms), rooms)
    events.until(lambda: bool(events.received(server)))
    held = events.received(server)[0].frames[1]
    events.forget()
    client.disconnect("server/1")
    events.until(lambda: bool(events.downs(server)))
    client.memory.allocate(200 * MIB)  # looks for what could go
    assert held == rooms[1]
    assert not delivery.done
    del held
    assert delivery.done


@pytest.mark.parametrize("how", ["disconnect", "close"])
def test_what_was_never_read_is_not_lent_for_ever(make_port: MakePort, how: str) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    rooms = rooms_of(client, 1)
    first = client.send("server/1", push(1, rooms), rooms)
    events.until(lambda: bool(events.received(server)))
    later = [client.send("server/1", push(req, rooms), rooms) for req in range(2, 6)]
    if how == "disconnect":
        server.disconnect("worker/1")
    else:
        server.close()
    assert all(delivery.done for delivery in later)
    assert not first.done  # its event is still there
    events.forget()
    assert first.done


def test_a_fork_of_the_reader_lets_go_of_nothing(talk: Talk) -> None:
    delivery = talk.push(rooms_of(talk.port, 1), slot=KEEP)
    talk.ask(FORK)
    time.sleep(0.1)
    assert not delivery.done
    talk.ask(DROP)
    talk.until_done(delivery)


def test_a_stopped_reader_is_dropped_by_name_and_what_it_has_not_read_comes_back(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(queue_messages=16))
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        talk = Talk(server, process.pid)
        rooms = rooms_of(server, 50)
        talk.push(rooms)
        os.kill(process.pid, signal.SIGSTOP)
        deliveries: list[Delivery] = []

        def fill() -> None:
            while len(deliveries) < 5000:
                deliveries.append(server.send("worker/1", push(1, rooms), rooms))

        with pytest.raises(PeerLostError, match="lost worker/1: its queue is full"):
            fill()
        assert len(deliveries) < 1000  # what its socket takes, and 16
        talk.until_done(deliveries[-1])  # it never left
        assert not deliveries[0].done  # the stopped process could read it, for all we know
        os.kill(process.pid, signal.SIGCONT)
        talk.events.until(lambda: all(delivery.done for delivery in deliveries))


def test_more_loans_than_there_are_slots_go_as_bytes(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    table = next(iter(talk.port._locals.links))._out  # type: ignore[union-attr]
    rooms = rooms_of(talk.port, 1, 5000)
    first = talk.push(rooms, slot=KEEP)
    assert table.table is not None
    monkeypatch.setattr(table.table, "free", [])
    second = talk.push(rooms, slot=KEEP)
    assert not first.done
    assert second.done  # copied


# ---------------------------------------------------------------- nothing is left behind


def test_ten_thousand_messages_leave_nothing_behind(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))

    def size() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text().count("memfd:paceline")
        return len(os.listdir("/proc/self/fd")), maps, server.memory.stats.segments + client.memory.stats.segments

    kept = rooms_of(client, 3, 1000)
    sizes = []
    for number in range(10_000):
        big = [client.memory.allocate(50 * MIB) for _ in range(3)] if number % 500 == 0 else []  # segments come and go
        frames = [*kept, *big, client.memory.allocate(100_000)]
        client.send("server/1", push(number, frames), frames)
        event = server.recv(5.0)
        assert isinstance(event, Received)
        assert len(event.frames) == len(frames)
        del event
        if number % 1000 == 999:
            del frames, big
            events.until(lambda: client.recv(0) is None)
            client.memory.allocate(MIB)
            sizes.append(size())
            frames = big = []
    assert len(set(sizes[2:])) == 1, sizes
    assert not loans._readings


def test_a_closed_port_keeps_no_descriptors() -> None:
    """Not even until the garbage is collected."""
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            server, client = ZmqPort("server/1", TOKEN, listen="127.0.0.1"), ZmqPort("worker/1", TOKEN)
            client.connect(str(server.address))
            events = Events(server, client)
            events.until_up((server, "worker/1"), (client, "server/1"))
            exchange(server, client, events)
            server.close()
            client.close()
            del server, client, events
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_nothing_has_a_name_that_could_be_left_behind() -> None:
    files = set(os.listdir("/dev/shm"))
    with peer_process(TOKEN, "listen", "0", "server/1") as (listening, address):
        port = ZmqPort("worker/1", TOKEN)
        port.connect(address)
        events = Events(port)
        events.until_up((port, "server/1"))
        port.send("server/1", Pull(1, 0, 0, 1, blocks=(MIB,)))
        events.until(lambda: bool(events.received(port)))
        names = Path("/proc/net/unix").read_text().count("@paceline-")
        assert names > 0
        assert set(os.listdir("/dev/shm")) == files
        listening.kill()
        listening.wait()
        port.close()
    assert Path("/proc/net/unix").read_text().count("@paceline-") < names
    assert set(os.listdir("/dev/shm")) == files


# ---------------------------------------------------------------- when it is not possible


def both_up(make_port: MakePort) -> tuple[ZmqPort, ZmqPort, Events]:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1", limits=LinkLimits(retry_max_s=0.05))
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    return server, client, events


def exchange(server: ZmqPort, client: ZmqPort, events: Events) -> None:
    """Rooms travel both ways, whatever the lane."""
    events.forget()
    for port, other in ((server, client), (client, server)):
        rooms = rooms_of(port, 3)
        delivery = port.send(other.node, push(1, rooms), rooms)
        events.until(lambda other=other: bool(events.received(other)))  # type: ignore[misc]
        assert [bytes(frame) for frame in events.received(other)[0].frames] == [bytes(room) for room in rooms]
        events.forget()
        events.until(lambda delivery=delivery: delivery.done)  # type: ignore[misc]


@pytest.mark.parametrize("which", ["server", "client", "both"])
def test_the_environment_can_forbid_it(make_port: MakePort, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setenv(LANE, "tcp" if which in ("server", "both") else "auto")
    server = make_port("server/1", listen="127.0.0.1")
    monkeypatch.setenv(LANE, "tcp" if which in ("client", "both") else "")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    assert not is_local(server)
    assert not is_local(client)
    exchange(server, client, events)


def test_a_lane_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="PACELINE_LANE must be auto or tcp, not 'shm'"):
        local_lane({LANE: "shm"})


def test_another_host_is_reached_by_tcp_and_the_log_says_so_once(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    monkeypatch.setattr(local_door, "host_name", lambda: "another")
    client = make_port("worker/1")
    with caplog.at_level(logging.INFO):
        client.connect(str(server.address))
        events = Events(server, client)
        events.until_up((server, "worker/1"), (client, "server/1"))
        server.disconnect("worker/1")
        events.until(lambda: len(events.ups(client)) == 2 and len(events.ups(server)) == 2)
    said = [record.getMessage() for record in caplog.records if "TCP" in record.getMessage()]
    assert said == [f"messages to {server.address} go by TCP, not by shared memory: it is on another host"]
    assert not is_local(client)
    exchange(server, client, events)


def test_a_link_that_the_listener_does_not_find_is_done_without(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forget_the_secret(offer: Offer) -> object:
        return local_door.knock(Offer(offer.host, offer.name, bytes(32)))

    monkeypatch.setattr(dial, "knock", forget_the_secret)
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1", limits=LinkLimits(retry_max_s=0.05))
    with caplog.at_level(logging.INFO):
        client.connect(str(server.address))
        events = Events(server, client)
        events.until(lambda: len(events.ups(server)) == 1 and len(events.ups(client)) == 2)
    assert "nobody came in" in caplog.text
    assert server.counters.refused == {"lane": 1}
    assert not is_local(server)
    exchange(server, client, events)


def test_no_watching_no_link(make_port: MakePort, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    server, client, events = both_up(make_port)
    assert not is_local(server)
    exchange(server, client, events)


@pytest.mark.parametrize("what", ["blocks", "loans"])
def test_without_shared_memory_the_link_carries_bytes(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    create = shared_files.create

    def refuse(name: str, nbytes: int, *, peers_write: bool = False) -> object:
        if name == what:
            raise OSError(24, "Too many open files")
        return create(name, nbytes, peers_write=peers_write)

    monkeypatch.setattr(shared_files, "create", refuse)
    monkeypatch.setattr("paceline.transport.memory.arena.shared_files.create", refuse)
    server, client, events = both_up(make_port)
    for port in (server, client):
        monkeypatch.setattr(port.memory, "_create", refuse)
    assert is_local(server)
    with caplog.at_level(logging.WARNING):
        exchange(server, client, events)
        exchange(server, client, events)
    assert caplog.text.count("memory cannot be shared") == 2  # once a port


def sent_away(socket: sockets.socket) -> bool:
    with socket:
        socket.settimeout(5.0)
        try:
            return not socket.recv(1)
        except ConnectionResetError:  # what it said was not even read
            return True


def test_only_processes_of_this_user_come_in(monkeypatch: pytest.MonkeyPatch, make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    assert server._listener is not None
    door = server._listener._door
    assert door is not None
    offer = door.offer()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(LocalLaneError, match=f"it runs as user {user}"):
        local_door.knock(offer)
    monkeypatch.undo()
    socket, _ = local_door.knock(offer)
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(LocalLaneError, match="nobody came in"):
        door.take(offer.nonce)
    assert sent_away(socket)


def test_those_who_say_nothing_at_the_door_are_sent_away(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(max_unproven=4, handshake_s=0.2))
    assert server._listener is not None
    door = server._listener._door
    assert door is not None
    silent = [local_door.knock(Offer(door.host, door.name, bytes(32)))[0] for _ in range(10)]
    assert server.recv(0.05) is None
    assert len(door._waiting) == 4
    deadline = time.monotonic() + 5
    while door._waiting and time.monotonic() < deadline:
        assert server.recv(0.05) is None
    gone = [sent_away(socket) for socket in silent]
    assert all(gone)
