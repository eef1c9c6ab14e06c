"""A live port under damaged input of every kind: it refuses the input, answers pings and does not use more memory."""

from __future__ import annotations

import json
import random
import time

import psutil
from tests.contract.port_contract import Events
from tests.kit.damage import mutate
from tests.kit.peer import peer_process
from tests.kit.strangers import Stranger, pour_noise
from tests.unit.wire.test_headers import SAMPLES

from paceline.messages import BlockFrame, Ok, PullReply, Push, StatusReply, StatusRequest
from paceline.transport.zmq.port import ZmqPort
from paceline.types import Fence
from paceline.wire.handshake import ClientHandshake, is_control
from paceline.wire.headers import encode_header
from paceline.wire.token import new_token

TOKEN = new_token()
MIB = 1 << 20


class Target:
    """The process that gets damaged input, and a port that pings it."""

    def __init__(self, process: psutil.Process, address: str, client: ZmqPort) -> None:
        self.process = process
        self.address = address
        self._client = client
        self._events = Events(client)
        self._events.until_up((client, "server/1"))
        self._req = 0
        self.ping()
        self.rss = process.memory_info().rss

    def ping(self) -> None:
        """Returns once the process has read everything that was sent before."""
        self._req += 1
        self._client.send("server/1", Ok(self._req))
        before = time.monotonic()
        self._events.until(lambda: any(e.message == Ok(self._req) for e in self._events.received(self._client)))
        assert time.monotonic() - before < 5.0
        assert not self._events.downs(self._client)
        self._events.forget()

    def refused(self) -> dict[str, int]:
        self._client.send("server/1", StatusRequest(1))
        self._events.until(lambda: bool(self._events.received(self._client)))
        reply = self._events.received(self._client)[0].message
        assert isinstance(reply, StatusReply)
        refused: dict[str, int] = json.loads(reply.json)["refused"]
        return refused

    def check(self) -> None:
        self.ping()
        assert self.process.is_running()
        assert self.process.memory_info().rss - self.rss < 50 * MIB


def damaged_messages(rng: random.Random) -> list[bytes]:
    header = mutate(encode_header(rng.choice(SAMPLES)), rng)
    frames = [rng.randbytes(rng.choice((0, 1, 16, 5000))) for _ in range(rng.randrange(4))]
    return [header, *frames]


def flood_a_session(target: Target, rng: random.Random, count: int) -> None:
    """Damaged messages from a peer that knows the token, and proves it again after each end of its session."""
    sent = 0
    while sent < count:
        with Stranger(target.address, TOKEN).connect() as stranger:
            stranger.prove("fuzzer/1", TOKEN, lambda: None)
            ended = False
            while sent < count and not ended:
                stranger.send(*damaged_messages(rng))
                sent += 1
                if sent % 500 == 0:
                    target.check()
                while stranger.socket.poll(0):
                    ended = is_control(stranger.socket.recv_multipart()[0])


def flood_handshakes(target: Target, rng: random.Random, count: int) -> None:
    for _ in range(count):
        with Stranger(target.address, TOKEN).connect() as stranger:
            hello = ClientHandshake("fuzzer/2", TOKEN).hello()
            stranger.send(mutate(rng.choice((hello, encode_header(Ok(1)), b"\xc1PCL\0\1")), rng))
            stranger.send(*damaged_messages(rng))
            stranger.socket.poll(5)
    target.check()


def flood_tcp(target: Target, rng: random.Random, count: int) -> None:
    pour_noise(target.address, rng, count)
    target.check()


def test_a_live_port_survives_ten_thousand_damaged_messages() -> None:
    rng = random.Random(11)
    client = ZmqPort("client/1", TOKEN)
    try:
        with peer_process(TOKEN, "listen", "0", "server/1") as (process, address):
            client.connect(address)
            target = Target(psutil.Process(process.pid), address, client)
            flood_a_session(target, rng, 6000)
            flood_handshakes(target, rng, 150)
            flood_tcp(target, rng, 300)
            flood_a_session(target, rng, 4000)
            target.check()
            assert process.poll() is None
            refused = target.refused()
    finally:
        client.close()
    # All of it was read, and each kind of damage was refused by name.
    assert sum(refused.values()) > 5000
    assert {"header", "frame-count", "frame-size", "control", "connection-handshake"} <= refused.keys()


def test_large_claims_and_many_frames_take_no_memory() -> None:
    """Messages of a few bytes that claim gigabytes, and 20,000 frames, do not make the process larger."""
    client = ZmqPort("client/1", TOKEN)
    try:
        with peer_process(TOKEN, "listen", "0", "server/1") as (process, address):
            client.connect(address)
            target = Target(psutil.Process(process.pid), address, client)
            fence = Fence(1, 1)
            with Stranger(address, TOKEN).connect() as stranger:
                stranger.prove("fuzzer/1", TOKEN, lambda: None)
                for numel in (10 << 30, 1 << 62, (1 << 64) - 1):
                    huge = (BlockFrame(0, "float64", numel),)
                    stranger.send(encode_header(Push(1, 0, 0, 0, 0, fence, 0, huge)), b"x")
                    stranger.send(encode_header(PullReply(1, 0, 0, 0, huge)), b"x")
                target.check()
                stranger.send(encode_header(Ok(1)), *[b""] * 20_000)
                target.check()
                assert target.process.memory_info().rss - target.rss < 20 * MIB
    finally:
        client.close()
