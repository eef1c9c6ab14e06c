"""The contract of `Port`: the test class of each implementation inherits it."""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.kit.timing import quickest

from paceline.errors import PeerLostError, PeerUnknownError, RefusedFrameError, TransportError
from paceline.messages import BlockFrame, Ok, Pull, PullReply, Push, PushAck, Refused, Register, StatusReply
from paceline.transport.base import Event, PeerDown, PeerUp, Port, Received
from paceline.transport.limits import LinkLimits
from paceline.types import Fence

PATIENCE_S = 10.0
SIZES = (0, 1, 4097, (64 << 10) - 1, 64 << 10, 1 << 20)


def push(req: int, frames: Sequence[memoryview], *, declared: Sequence[int] | None = None) -> Push:
    """Return a push of bytes; with `declared`, the push declares other sizes than its frames have."""
    numels = [frame.nbytes for frame in frames] if declared is None else declared
    blocks = tuple(BlockFrame(block, "uint8", numel) for block, numel in enumerate(numels))
    return Push(req, 0, 0, 0, 0, Fence(1, req), 0, blocks)


def block_bytes(nbytes: int, seed: int = 1) -> memoryview:
    """A writable buffer with a pattern that depends on the seed."""
    pattern = bytes((seed * 31 + i * 7) % 256 for i in range(256))
    return memoryview(bytearray((pattern * (nbytes // 256 + 1))[:nbytes]))


class Events:
    """Calls `recv` of some ports in turn and keeps their events."""

    def __init__(self, *ports: Port) -> None:
        self.ports = list(ports)
        self.seen: dict[str, list[Event]] = {port.node: [] for port in ports}

    def until(self, condition: Callable[[], bool]) -> None:
        """Receive on every port in turn until `condition` holds; fails after `PATIENCE_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"the condition does not hold after {PATIENCE_S:.0f} s; events so far: {self.seen}")
            for port in self.ports:
                event = port.recv(0.002)
                if event is not None:
                    self.seen[port.node].append(event)

    def until_up(self, *pairs: tuple[Port, str]) -> None:
        """Wait until each port has seen `PeerUp` of the peer."""
        self.until(lambda: all(any(e.peer == peer for e in self.ups(port)) for port, peer in pairs))

    def ups(self, port: Port) -> list[PeerUp]:
        return [event for event in self.seen[port.node] if isinstance(event, PeerUp)]

    def downs(self, port: Port) -> list[PeerDown]:
        return [event for event in self.seen[port.node] if isinstance(event, PeerDown)]

    def received(self, port: Port) -> list[Received]:
        return [event for event in self.seen[port.node] if isinstance(event, Received)]

    def forget(self) -> None:
        for events in self.seen.values():
            events.clear()


class PortFactory(ABC):
    """Makes ports of one kind that can reach each other."""

    limits = LinkLimits(queue_messages=32, retry_max_s=0.1)

    def __init__(self) -> None:
        self._made: list[Port] = []

    def port(self, node: str, *, at: str | None = None) -> Port:
        """A port that listens at the address `at`, or does not listen."""
        port = self.make(node, at)
        self._made.append(port)
        return port

    def close(self) -> None:
        for port in self._made:
            port.close()

    @abstractmethod
    def make(self, node: str, at: str | None) -> Port: ...

    @abstractmethod
    def free_address(self) -> str:
        """An address at which no port listens yet."""


class PortContract(ABC):
    """The rules of `Port`."""

    @abstractmethod
    def make_factory(self) -> PortFactory: ...

    @pytest.fixture
    def ports(self) -> Iterator[PortFactory]:
        ports = self.make_factory()
        yield ports
        ports.close()

    @pytest.fixture
    def pair(self, ports: PortFactory) -> tuple[Port, Port, Events]:
        """A listener `server/1` and a client `worker/1` with a session, and their events; no event is unread."""
        return self.join(ports)

    def join(self, ports: PortFactory) -> tuple[Port, Port, Events]:
        server = ports.port("server/1", at=ports.free_address())
        client = ports.port("worker/1")
        assert server.address is not None
        client.connect(server.address)
        events = Events(server, client)
        events.until_up((server, "worker/1"), (client, "server/1"))
        events.forget()
        return server, client, events

    # ------------------------------------------------------------ sessions

    def test_each_side_gets_peer_up_once(self, ports: PortFactory) -> None:
        server = ports.port("server/1", at=ports.free_address())
        client = ports.port("worker/1")
        assert server.address is not None
        assert client.address is None
        client.connect(server.address)
        client.connect(server.address)
        events = Events(server, client)
        events.until_up((server, "worker/1"), (client, "server/1"))
        events.until(lambda: server.recv(0.02) is None and client.recv(0.02) is None)
        assert events.seen == {
            "server/1": [PeerUp("worker/1")],
            "worker/1": [PeerUp("server/1", server.address)],
        }

    def test_a_port_may_connect_before_its_peer_listens(self, ports: PortFactory) -> None:
        address = ports.free_address()
        client = ports.port("worker/1")
        client.connect(address)
        assert client.recv(0.05) is None
        server = ports.port("server/1", at=address)
        events = Events(server, client)
        events.until_up((server, "worker/1"), (client, "server/1"))

    def test_peer_down_comes_after_the_last_message_of_the_peer(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        for req in range(5):
            client.send("server/1", Ok(req))
        client.close()
        events.ports.remove(client)
        events.until(lambda: bool(events.downs(server)))
        seen = events.seen["server/1"]
        assert [e.message for e in seen[:-1] if isinstance(e, Received)] == [Ok(req) for req in range(5)]
        assert isinstance(seen[-1], PeerDown)
        assert seen[-1].peer == "worker/1"
        assert seen[-1].reason
        with pytest.raises(PeerUnknownError, match="worker/1"):
            server.send("worker/1", Ok(9))

    @pytest.mark.parametrize("listener_closes", [True, False])
    def test_peer_down_comes_if_the_peer_closes_before_its_messages_are_read(
        self, pair: tuple[Port, Port, Events], listener_closes: bool
    ) -> None:
        server, client, _ = pair
        closing, staying = (server, client) if listener_closes else (client, server)
        for req in range(5):
            closing.send(staying.node, Ok(req))
        closing.close()
        time.sleep(0.1)  # the messages and the end of the connection wait in one queue
        events = Events(staying)
        events.until(lambda: bool(events.downs(staying)))
        assert [e.message for e in events.received(staying)] == [Ok(req) for req in range(5)]

    def test_a_restarted_listener_is_found_again(self, ports: PortFactory) -> None:
        server, client, events = self.join(ports)
        address = server.address
        server.close()
        events.ports.remove(server)
        events.until(lambda: bool(events.downs(client)))
        with pytest.raises(PeerUnknownError):
            client.send("server/1", Ok(1))
        again = ports.port("server/2", at=address)
        later = Events(again, client)
        later.until_up((again, "worker/1"), (client, "server/2"))
        client.send("server/2", Ok(2))
        later.until(lambda: [e.message for e in later.received(again)] == [Ok(2)])

    def test_a_newer_connection_of_the_same_node_replaces_the_older(self, ports: PortFactory) -> None:
        server, older, events = self.join(ports)
        newer = ports.port("worker/1")
        assert server.address is not None
        newer.connect(server.address)
        events.ports = [server, newer]
        events.until(lambda: bool(events.ups(server)))
        assert [type(event) for event in events.seen["server/1"]] == [PeerDown, PeerUp]
        server.send("worker/1", Ok(7))
        events.until(lambda: Received("server/1", Ok(7)) in events.received(newer))
        old_events = Events(older)
        old_events.until(lambda: bool(old_events.downs(older)))

    def test_disconnect_makes_an_event_at_the_peer_only(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        client.disconnect("server/1")
        client.disconnect("nobody")
        with pytest.raises(PeerUnknownError):
            client.send("server/1", Ok(1))
        events.until(lambda: bool(events.downs(server)))
        assert client.recv(0.05) is None
        assert events.seen["worker/1"] == []

    def test_a_port_can_stop_connecting_to_an_address(self, ports: PortFactory) -> None:
        address = ports.free_address()
        client = ports.port("worker/1")
        client.connect(address)
        assert client.recv(0.01) is None
        client.disconnect(address)
        server = ports.port("server/1", at=address)
        assert client.recv(0.15) is None
        assert server.recv(0) is None

    def test_the_listener_can_disconnect(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        server.disconnect("worker/1")
        with pytest.raises(PeerUnknownError):
            server.send("worker/1", Ok(1))
        events.until(lambda: bool(events.downs(client)))
        assert not events.downs(server)

    def test_messages_of_many_peers_name_their_sender(self, ports: PortFactory) -> None:
        server = ports.port("server/1", at=ports.free_address())
        assert server.address is not None
        clients = [ports.port(f"worker-{i}/1") for i in range(6)]
        for client in clients:
            client.connect(server.address)
        events = Events(server, *clients)
        events.until_up(*((client, "server/1") for client in clients), *((server, c.node) for c in clients))
        for i, client in enumerate(clients):
            client.send("server/1", Ok(i))
            server.send(client.node, Ok(100 + i))
        events.until(lambda: len(events.received(server)) == 6 and all(events.received(c) for c in clients))
        assert {(e.peer, e.message) for e in events.received(server)} == {(f"worker-{i}/1", Ok(i)) for i in range(6)}
        for i, client in enumerate(clients):
            assert [e.message for e in events.received(client)] == [Ok(100 + i)]

    # ------------------------------------------------------------ messages and frames

    def test_messages_keep_their_order_and_value(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        there = [
            Register(1, "worker", "worker-0", 42, "host-a"),
            Pull(2, 0, 0, -1, blocks=(1, 2)),
            StatusReply(3, b"{}"),
            *(Ok(req) for req in range(4, 8)),
        ]
        for message in there:
            client.send("server/1", message)
        events.until(lambda: len(events.received(server)) == len(there))
        assert [e.message for e in events.received(server)] == there
        assert all(e.peer == "worker/1" for e in events.received(server))
        server.send("worker/1", PushAck(9, "held"))
        events.until(lambda: [e.message for e in events.received(client)] == [PushAck(9, "held")])

    def test_messages_that_may_wait_arrive_by_themselves_and_in_order(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        for req in range(3):
            client.send("server/1", Ok(req), later=True)
        events.until(lambda: len(events.received(server)) == 3)
        client.send("server/1", Ok(3), later=True)
        client.send("server/1", Ok(4))
        events.until(lambda: len(events.received(server)) == 5)
        assert [event.message for event in events.received(server)] == [Ok(req) for req in range(5)]

    def test_messages_that_wait_are_sent_before_the_port_closes(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, _ = pair
        client.send("server/1", Ok(1), later=True)
        client.close()
        events = Events(server)
        events.until(lambda: len(events.received(server)) == 1 and len(events.downs(server)) == 1)

    def test_frames_arrive_unchanged(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        frames = [block_bytes(nbytes, seed) for seed, nbytes in enumerate(SIZES)]
        sent = push(1, frames)
        client.send("server/1", sent, frames)
        events.until(lambda: len(events.received(server)) == 1)
        received = events.received(server)[0]
        assert received.message == sent
        assert [frame.format for frame in received.frames] == ["B"] * len(SIZES)
        assert [bytes(frame) for frame in received.frames] == [bytes(frame) for frame in frames]
        assert all(not frame.readonly for frame in received.frames if frame.nbytes)

    def test_large_frames_alternate_with_small_ones(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        for req in range(10):
            frames = [block_bytes((1 << 20) - req, req), block_bytes(100 + req, req)]
            client.send("server/1", push(req, frames), frames)
            events.forget()
            events.until(lambda: bool(events.received(server)))
            got = events.received(server)[0].frames
            assert [bytes(frame) for frame in got] == [bytes(frame) for frame in frames]

    def test_received_frames_outlive_the_event(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        frames = [block_bytes(nbytes) for nbytes in (5000, 1 << 20)]
        client.send("server/1", push(1, frames), frames)
        events.until(lambda: len(events.received(server)) == 1)
        kept = [frame[10:4000] for frame in events.received(server)[0].frames]
        events.forget()
        for req in range(3):
            client.send("server/1", Ok(req))
        events.until(lambda: len(events.received(server)) == 3)
        assert [bytes(view) for view in kept] == [bytes(frame[10:4000]) for frame in frames]

    def test_a_delivery_is_done_when_the_receiver_drops_the_frames(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        assert client.send("server/1", Ok(1)).done
        frames = [block_bytes(1 << 20, seed) for seed in range(4)]
        delivery = client.send("server/1", push(2, frames), frames)
        events.until(lambda: len(events.received(server)) == 2)
        events.forget()
        events.until(lambda: delivery.done)
        assert delivery.done

    # ------------------------------------------------------------ memory

    def test_allocated_memory_is_aligned_zeroed_and_writable(self, pair: tuple[Port, Port, Events]) -> None:
        memory = pair[0].memory
        for nbytes in (1, 63, 64, 65, 4097, 1 << 20):
            for _ in range(3):  # the second allocation probably reuses the memory of the first
                view = memory.allocate(nbytes)
                assert (view.nbytes, view.format, view.readonly, view.ndim) == (nbytes, "B", False, 1)
                assert ctypes.addressof(ctypes.c_char.from_buffer(view)) % 64 == 0
                assert not any(view)
                view[:] = b"\xff" * nbytes
                del view
        assert memory.allocate(0).nbytes == 0
        with pytest.raises(ValueError, match="-1"):
            memory.allocate(-1)

    def test_frames_in_allocated_memory_arrive_unchanged(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        taken = [client.memory.allocate(nbytes) for nbytes in SIZES]
        for seed, view in enumerate(taken):
            view[:] = block_bytes(view.nbytes, seed)
        frames = [*taken, taken[-1][100:5000], block_bytes(3000, 9), block_bytes(1 << 20, 10)]
        for peer, port, other in (("server/1", client, server), ("worker/1", server, client)):
            port.send(peer, push(1, frames), frames)
            events.until(lambda other=other: bool(events.received(other)))  # type: ignore[misc]
            got = events.received(other)[0].frames
            assert [frame.format for frame in got] == ["B"] * len(frames)
            assert [bytes(frame) for frame in got] == [bytes(frame) for frame in frames]
            assert all(not frame.readonly for frame in got if frame.nbytes)

    def test_the_memory_of_a_sent_frame_is_not_reused_before_its_delivery_is_done(
        self, pair: tuple[Port, Port, Events]
    ) -> None:
        server, client, events = pair
        sent = []
        for seed in range(6):
            view = client.memory.allocate(1 << 20)
            view[:] = block_bytes(1 << 20, seed)
            sent.append(bytes(view))
            client.send("server/1", push(seed, [view]), [view])
            del view  # `delivery.done` is not called either
        events.until(lambda: len(events.received(server)) == 6)
        for _ in range(6):
            client.memory.allocate(1 << 20)[:] = bytes(1 << 20)
        assert [bytes(e.frames[0]) for e in events.received(server)] == sent

    def test_counters_count_messages_and_bytes(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        frames = [block_bytes(1000)]
        client.send("server/1", push(1, frames), frames)
        client.send("server/1", Ok(2))
        events.until(lambda: len(events.received(server)) == 2)
        assert (client.counters.sent_messages, client.counters.sent_bytes) == (2, 1000)
        assert (server.counters.received_messages, server.counters.received_bytes) == (2, 1000)
        assert server.counters.refused == client.counters.refused == {}

    # ------------------------------------------------------------ refusals

    @pytest.mark.parametrize(
        ("declared", "rule"),
        [
            ([100, 100], "frame-size"),
            ([50], "frame-count"),
            ([50, 50, 50], "frame-count"),
            ([50, -50], "numel"),
        ],
    )
    def test_header_check_refuses_frames_that_differ_from_their_declaration(
        self, pair: tuple[Port, Port, Events], declared: list[int], rule: str
    ) -> None:
        server, client, events = pair
        frames = [block_bytes(50), block_bytes(50)]
        client.send("server/1", push(3, frames, declared=declared), frames)
        client.send("server/1", Ok(4))
        events.until(lambda: bool(events.received(server)) and bool(events.received(client)))
        assert [e.message for e in events.received(server)] == [Ok(4)]
        answer = events.received(client)[0].message
        assert isinstance(answer, Refused)
        assert (answer.req, answer.rule) == (3, rule)
        assert server.counters.refused == {rule: 1}

    def test_header_check_refuses_undeclared_frames(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        client.send("server/1", Ok(1), [block_bytes(10)])
        client.send("server/1", Ok(2))
        events.until(lambda: bool(events.received(server)))
        assert [e.message for e in events.received(server)] == [Ok(2)]
        assert server.counters.refused == {"frame-count": 1}

    def test_header_check_gives_the_role_refused_in_place_of_a_refused_reply(
        self, pair: tuple[Port, Port, Events]
    ) -> None:
        server, client, events = pair
        server.send("worker/1", PullReply(8, 0, 1, 1, (BlockFrame(0, "complex64", 1),)), [block_bytes(8)])
        events.until(lambda: bool(events.received(client)))
        told = events.received(client)[0]
        assert told.peer == "server/1"
        assert isinstance(told.message, Refused)
        assert (told.message.req, told.message.rule) == (8, "dtype")
        assert told.frames == ()

    def test_a_message_beyond_the_limits_is_refused_by_send(self, pair: tuple[Port, Port, Events]) -> None:
        server, client, events = pair
        small = block_bytes(100)
        for frames, rule in (
            ([memoryview(bytearray((64 << 20) + 1))], "frame-cap"),
            ([small] * 5000, "frame-count"),
            ([small[::2]], "contiguous"),
        ):
            with pytest.raises(RefusedFrameError) as refused:
                client.send("server/1", push(1, frames), frames)
            assert refused.value.rule == rule
        client.send("server/1", push(2, [small]), [small])  # no part of the refused messages was sent
        events.until(lambda: bool(events.received(server)))
        assert events.received(server)[0].message == push(2, [small])

    def test_unknown_peers_are_refused_by_name(self, pair: tuple[Port, Port, Events]) -> None:
        _, client, _ = pair
        with pytest.raises(PeerUnknownError, match="server/9"):
            client.send("server/9", Ok(1))

    @pytest.mark.parametrize("address", ["", "nowhere", "http://127.0.0.1:80", "tcp://127.0.0.1", "inproc://"])
    def test_foreign_addresses_are_refused(self, ports: PortFactory, address: str) -> None:
        client = ports.port("worker/1")
        with pytest.raises(ValueError, match="must have the form"):
            client.connect(address)

    @pytest.mark.parametrize("node", ["", "a b", "x" * 129, "worker\n", "ö"])
    def test_an_invalid_node_id_is_refused(self, ports: PortFactory, node: str) -> None:
        with pytest.raises(TransportError, match="node"):
            ports.port(node)

    # ------------------------------------------------------------ full queues, waits and ends

    @pytest.mark.parametrize("from_listener", [True, False])
    def test_a_full_queue_ends_the_session_by_name(self, pair: tuple[Port, Port, Events], from_listener: bool) -> None:
        server, client, _ = pair
        sender, peer = (server, "worker/1") if from_listener else (client, "server/1")
        frames = [block_bytes(1 << 20)]
        message = push(1, frames)
        slowest_s = 0.0

        def fill() -> None:
            nonlocal slowest_s
            for _ in range(400):
                before = time.monotonic()
                sender.send(peer, message, frames)
                slowest_s = max(slowest_s, time.monotonic() - before)

        with pytest.raises(PeerLostError, match=f"lost {peer}: its queue is full"):
            fill()
        assert slowest_s < 1.0
        events = Events(sender)
        events.until(lambda: bool(events.downs(sender)))
        assert events.downs(sender)[0].peer == peer

    def test_recv_without_events_returns_after_its_timeout(self, pair: tuple[Port, Port, Events]) -> None:
        _, client, _ = pair

        def wait(timeout_s: float) -> float:
            before = time.monotonic()
            assert client.recv(timeout_s) is None
            return time.monotonic() - before

        assert quickest(lambda: wait(0), 0.1) < 0.1
        assert wait(0.15) >= 0.149
        assert quickest(lambda: wait(0.15), 1.0) < 1.0

    def test_close_is_idempotent_and_final(self, pair: tuple[Port, Port, Events]) -> None:
        _, client, _ = pair
        client.close()
        client.close()
        for call in (
            lambda: client.send("server/1", Ok(1)),
            lambda: client.recv(0),
            lambda: client.connect("tcp://127.0.0.1:1"),
            lambda: client.disconnect("server/1"),
        ):
            with pytest.raises(TransportError, match="closed"):
                call()
