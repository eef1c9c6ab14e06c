"""Sessions between processes of one host: frames travel as references, and loans end when the peer drops them."""

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
from paceline.transport.local import listener as local_listener
from paceline.transport.local.listener import LocalLaneError, LocalListener
from paceline.transport.memory import loans, shared_files
from paceline.transport.zmq.port import ZmqPort
from paceline.types import Fence
from paceline.wire.handshake import Offer
from paceline.wire.token import new_token

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
    """A port of this process and a peer process that has connected to it."""

    def __init__(self, port: ZmqPort, pid: int) -> None:
        self.port = port
        self.process = psutil.Process(pid)
        self.events = Events(port)
        self.events.until_up((port, "worker/1"))
        self._req = 0

    def ask(self, block: int) -> None:
        """Send the peer an order, and wait until it has carried it out."""
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
    return any(link.near for link in port._links.links)


def rss_kib(pid: int, kind: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(f"Rss{kind}:")))


def frames_of(port: ZmqPort, count: int, nbytes: int = MIB) -> list[memoryview]:
    frames = [port.memory.allocate(nbytes) for _ in range(count)]
    for seed, frame in enumerate(frames):
        frame[:] = block_bytes(nbytes, seed)
    return frames


# ---------------------------------------------------------------- references


def test_two_processes_of_one_host_use_a_local_link(talk: Talk) -> None:
    assert is_local(talk.port)
    for req in range(200):
        talk.port.send("worker/1", Ok(1000 + req))
        talk.events.until(lambda: any(e.message == Ok(1000 + req) for e in talk.events.received(talk.port)))  # noqa: B023
        talk.events.forget()


def test_a_hundred_megabytes_are_read_in_place(talk: Talk) -> None:
    frames = frames_of(talk.port, 100)
    talk.push(frames_of(talk.port, 1))  # the first push announces the table and the shared file
    anonymous, shared = rss_kib(talk.process.pid, "Anon"), rss_kib(talk.process.pid, "Shmem")
    delivery = talk.push(frames, slot=KEEP)
    assert rss_kib(talk.process.pid, "Anon") - anonymous < 4 << 10
    assert rss_kib(talk.process.pid, "Shmem") - shared > 95 << 10
    assert not delivery.done
    talk.ask(DROP)
    talk.until_done(delivery)


def test_lender_and_reader_see_the_same_memory(make_port: MakePort) -> None:
    """The lender breaks the rule and writes after the send: the reader sees it, so the frame is no copy."""
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    (lent,) = frames_of(client, 1)
    client.send("server/1", push(1, [lent]), [lent])
    events.until(lambda: bool(events.received(server)))
    frame = events.received(server)[0].frames[0]
    tensor = torch.frombuffer(frame, dtype=torch.uint8)
    assert tensor.data_ptr() == ctypes.addressof(ctypes.c_char.from_buffer(frame))
    lent[5] = 77
    assert frame[5] == tensor[5] == 77


def test_a_reader_cannot_write(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        talk = Talk(server, process.pid)
        talk.push(frames_of(server, 1), slot=KEEP)
        maps = [
            line.split()[1] for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines() if "blocks" in line
        ]
    assert maps == ["r--s"]


def test_a_tensor_over_a_frame_keeps_the_loan_open(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    frames = frames_of(client, 3)
    delivery = client.send("server/1", push(1, frames), frames)
    events.until(lambda: bool(events.received(server)))
    tensor = torch.frombuffer(events.received(server)[0].frames[1], dtype=torch.float32)[7:9]
    events.forget()
    assert not delivery.done
    assert tensor.view(torch.uint8).tolist() == list(frames[1][28:36])
    del tensor
    assert delivery.done


def test_one_message_may_have_frames_of_several_shared_files_and_of_private_memory(talk: Talk) -> None:
    frames = frames_of(talk.port, 2, 40 * MIB)  # each allocation needs a region of its own
    frames[1:1] = [block_bytes(5000), memoryview(bytearray()), block_bytes(2 * MIB), memoryview(b"read-only")]
    delivery = talk.push([frame[:MIB] for frame in frames], slot=KEEP)
    assert not delivery.done
    talk.ask(DROP)
    talk.until_done(delivery)


def test_a_loan_over_several_shared_files_ends_when_the_last_frame_is_dropped(make_port: MakePort) -> None:
    server, client, events = both_up(make_port)
    lent = [client.memory.allocate(40 * MIB) for _ in range(3)]  # each frame in a region of its own
    delivery = client.send("server/1", push(1, lent), lent)
    events.until(lambda: bool(events.received(server)))
    frames = list(events.received(server)[0].frames)
    events.forget()
    while frames:
        assert not delivery.done
        frames.pop()
    assert delivery.done


def test_frames_in_private_memory_are_sent_as_bytes(talk: Talk) -> None:
    """A model of 100 MB in private memory, several times: the reader reuses its memory."""
    frames = [block_bytes(MIB, seed) for seed in range(100)]
    sizes = []
    for _ in range(4):
        talk.until_done(talk.push(frames))
        sizes.append(talk.process.memory_info().rss)
    assert max(sizes) - sizes[0] < 20 * MIB


# ---------------------------------------------------------------- loans


def test_memory_is_reused_only_after_the_reader_has_dropped_the_frames(talk: Talk) -> None:
    (frame,) = frames_of(talk.port, 1, 40 * MIB)
    where = ctypes.addressof(ctypes.c_char.from_buffer(frame))
    talk.push([frame], slot=KEEP)
    del frame  # `delivery.done` is not called either
    others = [talk.port.memory.allocate(40 * MIB) for _ in range(3)]
    assert where not in [ctypes.addressof(ctypes.c_char.from_buffer(other)) for other in others]
    del others
    talk.ask(DROP)
    talk.events.until(lambda: talk.port.recv(0.01) is None)
    others = [talk.port.memory.allocate(40 * MIB) for _ in range(4)]  # the regions of the three others are kept
    assert where in [ctypes.addressof(ctypes.c_char.from_buffer(other)) for other in others]


def test_a_loan_ends_with_the_death_of_the_reader(talk: Talk) -> None:
    frames = frames_of(talk.port, 4)
    deliveries = [talk.push(frames, slot=KEEP), talk.push(frames[:1], slot=KEEP)]
    assert not any(delivery.done for delivery in deliveries)
    talk.process.kill()
    deadline = time.monotonic() + 2.0
    while not all(delivery.done for delivery in deliveries):  # the loan ends without a call of recv
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_received_frames_stay_valid_after_the_death_of_the_lender(talk: Talk) -> None:
    talk.port.send("worker/1", Pull(1, 0, 0, 1, blocks=(32 * MIB,)))
    talk.events.until(lambda: bool(talk.events.received(talk.port)))
    reply = talk.events.received(talk.port)[0]
    assert isinstance(reply.message, PullReply)
    frame = reply.frames[0]
    talk.process.kill()
    talk.events.until(lambda: bool(talk.events.downs(talk.port)))
    talk.port.close()
    assert frame == pattern(32 * MIB)


def test_a_loan_outlives_its_session(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    frames = frames_of(client, 2)
    delivery = client.send("server/1", push(1, frames), frames)
    events.until(lambda: bool(events.received(server)))
    held = events.received(server)[0].frames[1]
    events.forget()
    client.disconnect("server/1")
    events.until(lambda: bool(events.downs(server)))
    client.memory.allocate(200 * MIB)  # the arena frees what it can before it grows
    assert held == frames[1]
    assert not delivery.done
    del held
    assert delivery.done


@pytest.mark.parametrize("how", ["disconnect", "close"])
def test_a_loan_that_was_never_read_ends_when_the_reader_ends_the_session(make_port: MakePort, how: str) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    frames = frames_of(client, 1)
    first = client.send("server/1", push(1, frames), frames)
    events.until(lambda: bool(events.received(server)))
    later = [client.send("server/1", push(req, frames), frames) for req in range(2, 6)]
    if how == "disconnect":
        server.disconnect("worker/1")
    else:
        server.close()
    assert all(delivery.done for delivery in later)
    assert not first.done  # the event of the reader still holds the frames
    events.forget()
    assert first.done


def test_a_fork_of_the_reader_does_not_end_a_loan(talk: Talk) -> None:
    delivery = talk.push(frames_of(talk.port, 1), slot=KEEP)
    talk.ask(FORK)
    time.sleep(0.1)
    assert not delivery.done
    talk.ask(DROP)
    talk.until_done(delivery)


def test_the_session_with_a_stopped_reader_ends_by_name_and_unsent_loans_end(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(queue_messages=16))
    with peer_process(TOKEN, "connect", str(server.address), "worker/1") as (process, _):
        talk = Talk(server, process.pid)
        frames = frames_of(server, 50)
        talk.push(frames)
        os.kill(process.pid, signal.SIGSTOP)
        deliveries: list[Delivery] = []

        def fill() -> None:
            while len(deliveries) < 5000:
                deliveries.append(server.send("worker/1", push(1, frames), frames))

        with pytest.raises(PeerLostError, match="lost worker/1: its queue is full"):
            fill()
        assert len(deliveries) < 1000  # the messages that the socket of the reader takes, and 16 more
        talk.until_done(deliveries[-1])  # the last loan was never sent
        assert not deliveries[0].done  # the stopped process may still read it
        os.kill(process.pid, signal.SIGCONT)
        talk.events.until(lambda: all(delivery.done for delivery in deliveries))


def test_frames_are_sent_as_bytes_when_the_table_of_loans_is_full(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = next(iter(talk.port._links.links))._out
    frames = frames_of(talk.port, 1, 5000)
    first = talk.push(frames, slot=KEEP)
    assert writer.table is not None
    monkeypatch.setattr(writer.table, "free", [])
    second = talk.push(frames, slot=KEEP)
    assert not first.done
    assert second.done  # the frame was copied


# ---------------------------------------------------------------- leaks


def test_ten_thousand_messages_leak_no_memory_and_no_descriptor(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))

    def size() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text().count("memfd:paceline")
        return len(os.listdir("/proc/self/fd")), maps, server.memory.stats.regions + client.memory.stats.regions

    gc.collect()
    others = set(loans._borrowed)  # frames that earlier tests of this process still hold
    kept = frames_of(client, 3, 1000)
    sizes = []
    for number in range(10_000):
        big = (
            [client.memory.allocate(50 * MIB) for _ in range(3)] if number % 500 == 0 else []
        )  # large frames allocate and free regions
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
    assert set(loans._borrowed) <= others


def test_a_closed_port_keeps_no_descriptors() -> None:
    """Not even until the next garbage collection."""
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


def test_no_file_and_no_socket_outlives_a_killed_process() -> None:
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


# ---------------------------------------------------------------- sessions that must go by TCP


def both_up(make_port: MakePort) -> tuple[ZmqPort, ZmqPort, Events]:
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1", limits=LinkLimits(retry_max_s=0.05))
    client.connect(str(server.address))
    events = Events(server, client)
    events.until_up((server, "worker/1"), (client, "server/1"))
    return server, client, events


def exchange(server: ZmqPort, client: ZmqPort, events: Events) -> None:
    """Send frames both ways, on either lane."""
    events.forget()
    for port, other in ((server, client), (client, server)):
        frames = frames_of(port, 3)
        delivery = port.send(other.node, push(1, frames), frames)
        events.until(lambda other=other: bool(events.received(other)))  # type: ignore[misc]
        assert [bytes(frame) for frame in events.received(other)[0].frames] == [bytes(frame) for frame in frames]
        events.forget()
        events.until(lambda delivery=delivery: delivery.done)  # type: ignore[misc]


@pytest.mark.parametrize("which", ["server", "client", "both"])
def test_the_environment_can_forbid_local_links(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
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
    """Only the socket's name proves one host: an offer of another host or network namespace names no socket here."""
    monkeypatch.setattr(LocalListener, "offer", lambda _: Offer("paceline-of-another-host", bytes(32)))
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1")
    with caplog.at_level(logging.INFO):
        client.connect(str(server.address))
        events = Events(server, client)
        events.until_up((server, "worker/1"), (client, "server/1"))
        server.disconnect("worker/1")
        events.until(lambda: len(events.ups(client)) == 2 and len(events.ups(server)) == 2)
    said = [record.getMessage() for record in caplog.records if "TCP" in record.getMessage()]
    why = "the peer is on another host, or in another network namespace"
    assert said == [f"messages to {server.address} go by TCP, not by shared memory: {why}"]
    assert not is_local(client)
    exchange(server, client, events)


def test_a_session_goes_by_tcp_if_the_listener_does_not_find_the_local_connection(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect = local_listener.connect

    def connect_without_the_secret(offer: Offer) -> object:
        return connect(Offer(offer.name, bytes(32)))

    monkeypatch.setattr(local_listener, "connect", connect_without_the_secret)
    server = make_port("server/1", listen="127.0.0.1")
    client = make_port("worker/1", limits=LinkLimits(retry_max_s=0.05))
    with caplog.at_level(logging.INFO):
        client.connect(str(server.address))
        events = Events(server, client)
        events.until(lambda: len(events.ups(server)) == 1 and len(events.ups(client)) == 2)
    assert "did not connect to the unix socket" in caplog.text
    assert server.counters.refused == {"lane": 1}
    assert not is_local(server)
    exchange(server, client, events)


def test_a_session_goes_by_tcp_if_processes_cannot_be_watched(
    make_port: MakePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    server, client, events = both_up(make_port)
    assert not is_local(server)
    exchange(server, client, events)


@pytest.mark.parametrize("what", ["blocks", "loans"])
def test_a_local_link_carries_bytes_if_memory_cannot_be_shared(
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
    assert caplog.text.count("memory cannot be shared") == 2  # each port logs it once


def is_closed_by_the_peer(socket: sockets.socket) -> bool:
    with socket:
        socket.settimeout(5.0)
        try:
            return not socket.recv(1)
        except ConnectionResetError:  # the peer has read none of the records
            return True


def test_only_processes_of_the_same_user_get_a_local_link(monkeypatch: pytest.MonkeyPatch, make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1")
    assert server._listener is not None
    listener = server._listener._local_listener
    assert isinstance(listener, LocalListener)
    offer = listener.offer()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(LocalLaneError, match=f"the peer runs as user {user}"):
        local_listener.connect(offer)
    monkeypatch.undo()
    socket, _ = local_listener.connect(offer)
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(LocalLaneError, match="did not connect to the unix socket"):
        listener.take(offer.nonce)
    assert is_closed_by_the_peer(socket)


def test_local_connections_without_a_secret_are_closed(make_port: MakePort) -> None:
    server = make_port("server/1", listen="127.0.0.1", limits=LinkLimits(max_unproven=4, handshake_s=0.2))
    assert server._listener is not None
    listener = server._listener._local_listener
    assert isinstance(listener, LocalListener)
    silent = [local_listener.connect(Offer(listener.name, bytes(32)))[0] for _ in range(10)]
    assert server.recv(0.05) is None
    assert len(listener._waiting) == 4
    deadline = time.monotonic() + 5
    while listener._waiting and time.monotonic() < deadline:
        assert server.recv(0.05) is None
    closed = [is_closed_by_the_peer(socket) for socket in silent]
    assert all(closed)
