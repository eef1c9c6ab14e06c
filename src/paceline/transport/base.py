"""The seam between roles: a `Port` sends messages with frames to named peers and receives events.

One port belongs to one thread. Lanes: `zmq` (any host; between processes of one host its sessions are carried by a
`local` link and shared memory) and `inproc` (tests and the embedded mode).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from paceline.messages import Message
from paceline.types import NodeId

Frame = memoryview
"""A contiguous, byte-shaped view of one block."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message that passed every check, with its frames decoded: each holds the elements that its block declares.

    The frames stay valid for as long as the receiver keeps them.
    """

    peer: NodeId
    message: Message
    frames: Sequence[Frame] = ()


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The handshake with `peer` is complete: messages may be sent. The connecting side is given `address`."""

    peer: NodeId
    address: str | None = None


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The session with `peer` is over, by name. Whether the last messages arrived is not known."""

    peer: NodeId
    reason: str


Event = Received | PeerUp | PeerDown


class Delivery(Protocol):
    """Tells when the lane no longer reads the frames that were handed to `send`."""

    @property
    def done(self) -> bool:
        """True once the buffers may be written again."""
        ...


class _Copied:
    __slots__ = ()
    done = True


COPIED: Delivery = _Copied()
"""A delivery that is done at once: the lane has copied what it needs."""


class Memory(Protocol):
    """Room for blocks that are sent again and again: frames in it reach peers of this host without a copy."""

    def allocate(self, nbytes: int) -> Frame:
        """A writable, byte-shaped view of zeros, aligned to 64 bytes.

        The room is given back by dropping it: the view, every slice of it and every tensor over it. One that was
        sent is not used again before its delivery is done.
        """
        ...


@dataclass(slots=True)
class Counters:
    """What a port has refused, by rule, and what it has moved."""

    refused: dict[str, int] = field(default_factory=dict)
    sent_messages: int = 0
    received_messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def refuse(self, rule: str) -> None:
        """Count one refusal."""
        self.refused[rule] = self.refused.get(rule, 0) + 1


class Port(Protocol):
    """A role's only way out. Not thread-safe; nothing here blocks except `recv`, and that has a time-out."""

    @property
    def node(self) -> NodeId:
        """The identity this port shows to its peers; unique per process start."""
        ...

    @property
    def address(self) -> str | None:
        """Where peers can connect, None for a port that does not listen."""
        ...

    @property
    def counters(self) -> Counters:
        """Live counters."""
        ...

    @property
    def memory(self) -> Memory:
        """Where to put what is sent; frames from elsewhere are carried as well, but as bytes."""
        ...

    def connect(self, address: str) -> None:
        """Start a session; `recv` returns `PeerUp` when it is authenticated. Reconnects by itself.

        When the two sides refuse each other (another token or version), `recv` returns `PeerDown` once, with
        the address in place of the peer, and attempts go on.

        Raises:
            ValueError: the address is not of this lane's form.
        """
        ...

    def disconnect(self, peer: NodeId) -> None:
        """End the session with `peer` and forget it; no event follows. Unknown peers are ignored.

        Before it has come up, a peer is named by the address that was given to `connect`.
        """
        ...

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame] = ()) -> Delivery:
        """Hand over one message without blocking and without copying large frames.

        The caller must not write to the buffers until the returned delivery is done. Arrival is not known
        from this call: only an application reply tells.

        Raises:
            PeerUnknownError: there is no session with that peer.
            PeerLostError: its queue is full, or its connection has just closed; the session is ended, and
                `recv` also returns `PeerDown`.
            RefusedFrameError: larger than the lane carries, or not contiguous; nothing was sent.
        """
        ...

    def recv(self, timeout_s: float) -> Event | None:
        """The next event, or None after `timeout_s` (0: do not wait).

        Refused frames are counted, never raised.
        """
        ...

    def close(self) -> None:
        """Close now, dropping what is queued beyond a short linger.

        Idempotent; any other call raises TransportError afterwards.
        """
        ...
