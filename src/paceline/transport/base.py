"""The interface between roles: a `Port` sends messages with frames to named peers and receives events.

One port belongs to one thread. Implementations: `ZmqPort` (between processes; two processes of one host use a local
link and shared memory), `InprocPort` (tests and the embedded mode), `FaultyPort` (planned faults).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from paceline.messages import Message
from paceline.types import NodeId

Frame = memoryview
"""A contiguous, byte-shaped view of one block."""


class Received(msgspec.Struct, frozen=True):
    """A message that passed every check, with decoded frames: each frame holds the elements that its block declares.

    The frames stay valid for as long as the receiver keeps them.
    """

    peer: NodeId
    message: Message
    frames: Sequence[Frame] = ()


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The handshake with `peer` is complete: messages may be sent. `address` is set on the connecting side."""

    peer: NodeId
    address: str | None = None


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The session with `peer` has ended. This side cannot know whether its last messages arrived.

    If there was no session because one side refuses the other, `peer` is the address, and `refused` is the rule:
    ``token`` (the two have different tokens), ``connection-handshake`` (most likely so, too), ``version``,
    ``insecure-blocks`` (only one of the two encrypts blocks), or ``owner`` (a process of another user listens there).
    """

    peer: NodeId
    reason: str
    refused: str = ""


Event = Received | PeerUp | PeerDown


class Delivery(Protocol):
    """Tells when nothing reads the frames of one `send` any more."""

    @property
    def done(self) -> bool:
        """True once the caller may write to the frames again."""
        ...


class _Copied:
    __slots__ = ()
    done = True


COPIED: Delivery = _Copied()
"""A delivery that is done at once: the frames were copied."""


class Memory(Protocol):
    """Memory for blocks that are sent many times: frames in it reach peers of this host without a copy."""

    def allocate(self, nbytes: int) -> Frame:
        """Allocate `nbytes` zero bytes, aligned to 64 bytes, and return a writable, byte-shaped view of them.

        The memory is freed when the view, every slice of it and every tensor over it are dropped. The memory of a sent
        frame is not reused before its delivery is done.
        """
        ...


@dataclass(slots=True)
class Counters:
    """How many frames a port has refused, by rule, and how much it has sent and received."""

    refused: dict[str, int] = field(default_factory=dict)
    sent_messages: int = 0
    received_messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def refuse(self, rule: str) -> None:
        """Count one refusal."""
        self.refused[rule] = self.refused.get(rule, 0) + 1

    def sent(self, frames: Sequence[Frame]) -> None:
        """Count one message that was sent with these frames."""
        self.sent_messages += 1
        for frame in frames:
            self.sent_bytes += frame.nbytes

    def received(self, frames: Sequence[Frame]) -> None:
        """Count one message that was received with these frames."""
        self.received_messages += 1
        for frame in frames:
            self.received_bytes += frame.nbytes


class Port(Protocol):
    """A role's only connection to other roles. Not thread-safe. Only `recv` waits, for `timeout_s` at most."""

    @property
    def node(self) -> NodeId:
        """The node id that this port proves to its peers; unique per start of a process."""
        ...

    @property
    def address(self) -> str | None:
        """The address to which peers connect; None for a port that does not listen."""
        ...

    @property
    def counters(self) -> Counters:
        """The live counters of this port: they change while the port works."""
        ...

    @property
    def memory(self) -> Memory:
        """Where to allocate frames that are sent often. Frames in other memory can be sent too, but are copied."""
        ...

    def connect(self, address: str) -> None:
        """Connect to the peer at `address`, and again whenever the session ends. `recv` returns `PeerUp` each time.

        If the two sides refuse each other (another token or version), `recv` returns `PeerDown` once, with the address
        in place of the peer, and the port keeps trying.

        Raises:
            ValueError: the address does not have the form of this port's addresses.
        """
        ...

    def disconnect(self, peer: NodeId) -> None:
        """End the session with `peer` and do not connect to it again; no event follows. Unknown peers are ignored.

        To stop connecting to a peer that has not come up yet, pass the address that was given to `connect`.
        """
        ...

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame] = (), *, later: bool = False) -> Delivery:
        """Send one message, without blocking and without a copy of large frames.

        With `later` the message may wait some milliseconds for the next message to the peer, to be sent with it.

        The caller must not write to the frames until the returned delivery is done. Only a reply of the peer tells that
        the message has arrived.

        Raises:
            PeerUnknownError: there is no session with that peer.
            PeerLostError: the peer's queue is full, or its connection has just closed. The session ends, and `recv`
                also returns `PeerDown`.
            RefusedFrameError: a frame is not contiguous, or the message exceeds the limits; nothing was sent.
        """
        ...

    def recv(self, timeout_s: float) -> Event | None:
        """Return the next event, or None if none comes within `timeout_s` (0: do not wait).

        A refused message is counted and raises nothing.
        """
        ...

    def close(self) -> None:
        """Close the port. Queued messages that are not sent within a short time are dropped.

        A second `close` does nothing. Every other call raises TransportError afterwards.
        """
        ...
