"""The port between processes, on one host or many: ZeroMQ over TCP, each connection proven by the job's token.

Two processes of one host then exchange their messages by shared memory (`paceline.transport.local`), or without it on a
plain stream; two processes of different hosts on a sealed connection (`paceline.transport.sealed`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

import zmq

from paceline.config.load import local_lane
from paceline.errors import TransportError
from paceline.messages import Message
from paceline.transport.base import Counters, Delivery, Event, Frame
from paceline.transport.limits import LinkLimits
from paceline.transport.loop import Loop
from paceline.transport.memory.arena import Arena
from paceline.transport.sessions import Sessions
from paceline.transport.streams.link import StreamLinks
from paceline.transport.waker import Waker
from paceline.transport.zmq.connections import Connection
from paceline.transport.zmq.dial import Dial
from paceline.transport.zmq.listener import Listener
from paceline.transport.zmq.sockets import PortContext
from paceline.types import NodeId
from paceline.wire.handshake import check_node
from paceline.wire.seal import check_cryptography
from paceline.wire.token import check_token


class ZmqPort:
    """A `Port` over ZeroMQ. It starts no Python thread and no event loop: all its work is done inside `recv`.

    A role must therefore call `recv` often enough (a few times in `limits.handshake_s`) for peers to connect. A peer
    that is not proven yet is named by its address: one `PeerDown(address, reason)` says why one side does not accept
    the other, and the port keeps trying.
    """

    def __init__(
        self,
        node: NodeId,
        token: bytes,
        *,
        listen: str | None = None,
        port: int = 0,
        limits: LinkLimits | None = None,
        encrypt: bool | None = None,
        local: bool | None = None,
        insecure_blocks: bool | None = False,
        one_port: bool = False,
    ) -> None:
        """Open the port of `node`; with `listen`, an IP address, accept connections at that address.

        `port` 0 lets the system choose a TCP port. With `encrypt` None, connections are encrypted except on loopback
        addresses. `local` says whether sessions with processes of this host may use shared memory; None reads the
        environment. With `insecure_blocks`, frames on encrypted connections are neither encrypted nor authenticated;
        headers are. Both ends must say the same; a port that does not listen may say None, and does as its peers do.
        Sessions by TCP need a second port at `listen`, which the system chooses. With `one_port` there is none: they
        then stay on `port`, and blocks take longer, about three times if they are encrypted.

        Raises:
            ValueError: `listen` is not a single address (with a wildcard, every network could reach the port), or
                `encrypt` is False and `listen` is not a loopback address.
            RefusedFrameError: `node` is not a node id.
            TransportError: the address is in use, or it is not an address of this machine; or connections must be
                encrypted, and the package `cryptography` is missing.
        """
        check_node(node)
        check_token(token)
        listen = None if listen is None else _listen_address(listen)
        listen_encrypted = None if listen is None else _encrypts(listen, encrypt)
        self._encrypt = encrypt
        self._sessions = Sessions(node, token, LinkLimits() if limits is None else limits)
        self._loop = Loop()
        local = local_lane() if local is None else local
        self._links = StreamLinks(self._loop, self._sessions, share=local)
        self._memory = self._links.arena
        self._shared = PortContext(zmq.Context(), self._loop, self._sessions, self._links, local, insecure_blocks)
        self._dials: dict[str, Dial] = {}
        self._listener: Listener | None = None
        self._waker: Waker | None = None
        self._closed = False
        if listen is not None and listen_encrypted is not None:
            try:
                self._listener = Listener(self._shared, listen, port, encrypt=listen_encrypted, one_port=one_port)
            except BaseException:
                self._shared.zmq.destroy(0)
                raise

    @property
    def node(self) -> NodeId:
        """See `Port.node`."""
        return self._sessions.node

    @property
    def address(self) -> str | None:
        """See `Port.address`: ``tcp://host:port``."""
        return None if self._listener is None else self._listener.address

    @property
    def counters(self) -> Counters:
        """See `Port.counters`."""
        return self._sessions.counters

    @property
    def memory(self) -> Arena:
        """See `Port.memory`."""
        return self._memory

    def connect(self, address: str) -> None:
        """See `Port.connect`. Does nothing for an address to which this port connects already."""
        self._check_open()
        parts = urlsplit(address)
        if parts.scheme != "tcp" or not parts.hostname or not parts.port or parts.path or parts.query:
            raise ValueError(f"the address must have the form tcp://HOST:PORT, not {address!r}")
        dial = self._dials.get(address)
        if dial is not None and not dial.stopped:
            return
        encrypt = _encrypts(parts.hostname, self._encrypt)
        self._dials[address] = Dial(self._shared, address, parts.hostname, parts.port, encrypt=encrypt)

    def disconnect(self, peer: NodeId) -> None:
        """See `Port.disconnect`. A peer that connected to this port may connect again.

        For a peer that has not come up yet, pass its address: the port stops trying to connect to it.
        """
        self._check_open()
        dial = self._dials.get(peer)
        link = self._sessions.forget(peer) if dial is None else dial
        if isinstance(link, Dial):
            if link.peer is not None:
                self._sessions.forget(link.peer)
            link.stop()
            del self._dials[link.address]
        elif isinstance(link, Connection):
            link.end("closed", "the peer ended the session")

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame] = (), *, later: bool = False) -> Delivery:
        """See `Port.send`."""
        if self._closed:
            self._check_open()
        self._loop.sent(type(message))
        return self._sessions.send(peer, message, frames, later)

    def recv(self, timeout_s: float) -> Event | None:
        """See `Port.recv`."""
        if self._closed:
            self._check_open()
        loop, events = self._loop, self._sessions.events
        now = loop.now()
        deadline = now + timeout_s
        polled = False
        while True:
            if now >= loop.due:
                self._tick(now)
            while not events and loop.read_one():
                pass
            if events:
                return self._sessions.take_event()
            if (self._waker is not None and self._waker.take()) or (polled and now >= deadline):
                return None
            loop.wait(min(deadline, loop.due) - now)
            polled = True
            now = loop.now()

    def waker(self) -> Waker:
        """What lets another thread end the wait of `recv`, which then returns None."""
        if self._waker is None:
            self._waker = Waker(self._loop)
        return self._waker

    def close(self) -> None:
        """See `Port.close`."""
        if self._closed:
            return
        self._closed = True
        for dial in self._dials.values():
            dial.stop()
        if self._listener is not None:
            self._listener.close()
        if self._waker is not None:
            self._waker.close()
        self._links.close()
        self._memory.close()
        self._sessions.drop_events()
        self._shared.zmq.term()

    # ------------------------------------------------------------ inside

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError(f"the port of {self.node} is closed")

    def _tick(self, now: float) -> None:
        self._loop.begin_tick()
        if self._listener is not None:
            self._listener.tick(now)
        for dial in list(self._dials.values()):
            dial.tick(now)
        self._links.tick(now)


def _listen_address(listen: str) -> str:
    try:
        address = ipaddress.ip_address(listen)
    except ValueError:
        raise ValueError(f"listen={listen!r} is not an IP address: give the IP address that peers connect to") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"listen={listen!r} is a wildcard: give the one address that peers connect to")
    return str(address)


def is_loopback(host: str) -> bool:
    """Whether `host` is an address of this machine that other machines cannot reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _encrypts(host: str, encrypt: bool | None) -> bool:
    """Whether connections to `host` are encrypted; only loopback connections may be plain.

    Raises:
        ValueError: `encrypt` is False, and `host` is not a loopback address.
        TransportError: they are encrypted, and the package that encrypts is missing.
    """
    loopback = is_loopback(host)
    if not loopback and encrypt is False:
        raise ValueError(
            f"{host} is not a loopback address, so its connections must be encrypted: remove encrypt=False"
        )
    encrypted = (not loopback) if encrypt is None else encrypt
    if encrypted:
        check_cryptography()
    return encrypted
