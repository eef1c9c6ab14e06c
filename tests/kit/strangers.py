"""Peers that break the rules: raw sockets with any part of the protocol, and a proxy that keeps all bytes."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable
from types import TracebackType
from typing import Self

import pytest
import zmq
from tests.kit.damage import mutate
from zmq.utils import z85

from paceline.transport.base import Port
from paceline.wire.handshake import ClientHandshake
from paceline.wire.token import curve_secret, make_ticket


class Stranger:
    """A raw DEALER. With a token it shows a valid ticket, or (`encrypt`) the right key, so it may send frames."""

    def __init__(
        self, address: str, token: bytes | None = None, *, routing_id: bytes | None = None, encrypt: bool = False
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 86_400_000)
        if routing_id is not None:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if token is not None and encrypt:
            self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
            self.socket.curve_serverkey = zmq.curve_public(z85.encode(curve_secret(token)))
        elif token is not None:
            name, password = make_ticket(token, int(address.rpartition(":")[2]))
            self.use_ticket(name, password)
        self.address = address

    def use_ticket(self, name: str, password: str) -> None:
        self.socket.setsockopt_string(zmq.PLAIN_USERNAME, name)
        self.socket.setsockopt_string(zmq.PLAIN_PASSWORD, password)

    def connect(self) -> Self:
        self.socket.connect(self.address)
        return self

    def send(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def prove(self, node: str, token: bytes, pump: Callable[[], object]) -> None:
        """Run the whole handshake; `pump` runs the listener meanwhile."""
        handshake = ClientHandshake(node, token)
        self.send(handshake.hello())
        while handshake.peer is None:
            answer = handshake.receive(self.answer(pump))
            if handshake.accepted is not None:
                answer = handshake.choose("tcp")
            if answer is not None:
                self.send(answer)

    def answer(self, pump: Callable[[], object]) -> bytes:
        """The next frame of the listener."""
        for _ in range(500):
            pump()
            if self.socket.poll(10):
                return self.socket.recv()
        return pytest.fail("the listener did not answer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(0)


class Proxy:
    """Carries bytes between a client and a listener, and keeps them. No thread: call `pump`.

    It listens at the address `at`. `seen` are all bytes, `sent` those of the client.
    """

    def __init__(self, target: str, at: str = "127.0.0.2") -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server((at, int(port)))
        self._listener.setblocking(False)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.address = f"tcp://{at}:{port}"
        self.seen = bytearray()
        self.sent = bytearray()

    def pump(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            pass
        else:
            self._pairs.append((client, socket.create_connection(self._target)))
            for end in self._pairs[-1]:
                end.setblocking(False)
        for left, right in self._pairs:
            self.sent += self._copy(left, right)
            self._copy(right, left)

    def _copy(self, source: socket.socket, target: socket.socket) -> bytes:
        try:
            data = source.recv(1 << 16)
        except (BlockingIOError, ConnectionError):
            return b""
        self.seen += data
        if data:
            target.setblocking(True)
            target.sendall(data)
            target.setblocking(False)
        return data

    def close(self) -> None:
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()


def pour_noise(address: str, rng: random.Random, count: int) -> None:
    """Open `count` connections, each with random bytes, a damaged greeting or another protocol."""
    host, port = address.removeprefix("tcp://").split(":")
    greeting = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00PLAIN" + bytes(15) + b"\0" + bytes(31)
    for _ in range(count):
        noise = (rng.randbytes(64), greeting, mutate(greeting, rng), b"GET / HTTP/1.1\r\n\r\n")
        with socket.create_connection((host, int(port))) as raw, contextlib.suppress(ConnectionError):
            raw.sendall(rng.choice(noise))
            raw.sendall(rng.randbytes(rng.randrange(200)))


def pump_all(*ports: Port) -> Callable[[], None]:
    """A function that calls `recv` of each port until it has no more events."""

    def pump() -> None:
        for port in ports:
            while port.recv(0) is not None:
                pass

    return pump
