"""The port within one process: no sockets, no threads, no copies.

`send` puts a message into the other port's queue, and the other role takes it with `recv`. Frames are passed by
reference: a delivery is done once the receiver has dropped every view of the frames, so the sender must not write to
them before that, as with sockets.

The embedded mode runs several roles in one thread. Each role registers a *pump*: a function that does some of the
role's work and returns whether there was any. A port that waits for an event runs the pumps meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.errors import PeerLostError, PeerUnknownError, TransportError
from paceline.messages import Message, Refused
from paceline.transport.admission import admit, check_outgoing, encode_checked, open_header
from paceline.transport.base import Counters, Delivery, Event, Frame, PeerDown, PeerUp
from paceline.transport.limits import LinkLimits
from paceline.transport.memory.arena import Arena
from paceline.types import NodeId
from paceline.wire.handshake import check_node

_SCHEME = "inproc://"
_IDLE_S = 0.0005

Pump = Callable[[], bool]


class _Queued(NamedTuple):
    """A message in the queue of its receiver; in strict mode, the encoded bytes of the message."""

    peer: NodeId
    message: Message | bytes
    frames: tuple[Frame, ...]


class _Loan:
    """The `Delivery` of frames that the receiver reads in place: done when the receiver has dropped every view."""

    __slots__ = ("_holders",)

    def __init__(self, holders: Sequence[weakref.ref[ctypes.Array[ctypes.c_char]]]) -> None:
        self._holders = holders

    @property
    def done(self) -> bool:
        return all(holder() is None for holder in self._holders)


def _lend(frames: Sequence[Frame]) -> tuple[tuple[Frame, ...], Delivery]:
    """Make views of `frames` for the receiver, and a delivery that is done when the receiver has dropped all of them.

    Each view is made from a ctypes array: every slice or cast of the view keeps that array alive, and a weak reference
    tells when the array is gone. The sender cannot write to read-only frames, so a delivery does not wait for them.
    """
    views: list[Frame] = []
    holders: list[weakref.ref[ctypes.Array[ctypes.c_char]]] = []
    for frame in frames:
        if frame.readonly or not frame.nbytes:
            views.append(frame.cast("B") if frame.nbytes else memoryview(b""))
            continue
        holder = (ctypes.c_char * frame.nbytes).from_buffer(frame)
        views.append(memoryview(holder).cast("B"))
        holders.append(weakref.ref(holder))
    return tuple(views), _Loan(holders)


class InprocHub:
    """Connects the ports of one process. The hub and its ports belong to one thread."""

    def __init__(self, *, strict: bool = False, limits: LinkLimits | None = None) -> None:
        """Make a hub without ports. With `strict`, every message is encoded and decoded, as between processes."""
        self.strict = strict
        self.limits = LinkLimits() if limits is None else limits
        self._listeners: dict[str, InprocPort] = {}
        self._dials: dict[str, list[InprocPort]] = {}
        self._pumps: list[Pump] = []
        self._pumping = False

    def port(self, node: NodeId, *, listen: str | None = None) -> InprocPort:
        """Open a port for `node`. With `listen`, peers can connect to it at ``inproc://<listen>``.

        Raises:
            ValueError: another port listens under the name `listen`.
        """
        return InprocPort(self, node, listen=listen)

    def add_pump(self, pump: Pump) -> None:
        """Run `pump` whenever a port waits. A pump does a little work and returns whether there was any."""
        self._pumps.append(pump)

    def remove_pump(self, pump: Pump) -> None:
        """Undo `add_pump`."""
        self._pumps.remove(pump)

    def pump(self) -> bool:
        """Run every pump once; True if any pump made progress. Does nothing if a pump is running already."""
        if self._pumping:
            return False
        self._pumping = True
        try:
            progress = False
            for pump in tuple(self._pumps):
                progress = pump() or progress
            return progress
        finally:
            self._pumping = False

    @property
    def pumping(self) -> bool:
        """Whether a pump is running. A port must not wait inside a pump: the wait would never end."""
        return self._pumping

    def listen(self, port: InprocPort, address: str) -> None:
        """Make `port` reachable at `address`, and connect the ports that already dial this address."""
        if address in self._listeners:
            raise ValueError(f"{address} is in use: choose another name")
        self._listeners[address] = port
        for dialler in self._dials.get(address, ()):
            _join(dialler, port, address)

    def dial(self, port: InprocPort, address: str) -> None:
        """Connect `port` to the port that listens at `address`, as soon as there is one."""
        diallers = self._dials.setdefault(address, [])
        if port in diallers:
            return
        diallers.append(port)
        listener = self._listeners.get(address)
        if listener is not None:
            _join(port, listener, address)

    def hang_up(self, port: InprocPort, address: str) -> None:
        """Stop connecting `port` to `address`."""
        diallers = self._dials.get(address, [])
        if port in diallers:
            diallers.remove(port)

    def redial(self, port: InprocPort, address: str) -> None:
        """Connect `port` to `address` again after a session has ended, unless it has hung up or none listens there."""
        listener = self._listeners.get(address)
        if listener is not None and port in self._dials.get(address, ()):
            _join(port, listener, address)

    def remove(self, port: InprocPort) -> None:
        """Forget `port`, which has closed: its address becomes free, and it is not connected any more."""
        if port.address is not None and self._listeners.get(port.address) is port:
            del self._listeners[port.address]
        for diallers in self._dials.values():
            if port in diallers:
                diallers.remove(port)


def _join(dialler: InprocPort, listener: InprocPort, address: str) -> None:
    listener.attach(dialler, None)
    dialler.attach(listener, address)


class InprocPort:
    """A `Port` within one process; made by `InprocHub.port`."""

    def __init__(self, hub: InprocHub, node: NodeId, *, listen: str | None = None) -> None:
        self._hub = hub
        self._node = check_node(node)
        self._address = None if listen is None else _SCHEME + listen
        self._counters = Counters()
        self._memory = Arena(share=False)
        self._queue: deque[Event | _Queued] = deque()
        self._waiting: dict[NodeId, int] = {}
        self._peers: dict[NodeId, tuple[InprocPort, str | None]] = {}
        self._closed = False
        if self._address is not None:
            hub.listen(self, self._address)

    @property
    def node(self) -> NodeId:
        """See `Port.node`."""
        return self._node

    @property
    def address(self) -> str | None:
        """See `Port.address`: ``inproc://name``."""
        return self._address

    @property
    def counters(self) -> Counters:
        """See `Port.counters`."""
        return self._counters

    @property
    def memory(self) -> Arena:
        """See `Port.memory`. This memory is not shared: ports of one process pass frames by reference."""
        return self._memory

    def connect(self, address: str) -> None:
        """See `Port.connect`."""
        self._check_open()
        if not address.startswith(_SCHEME) or address == _SCHEME:
            raise ValueError(f"the address must have the form {_SCHEME}NAME, not {address!r}")
        self._hub.dial(self, address)

    def disconnect(self, peer: NodeId) -> None:
        """See `Port.disconnect`. For a peer that has not come up yet, pass its address."""
        self._check_open()
        if peer.startswith(_SCHEME):
            self._hub.hang_up(self, peer)
            peer = next((node for node, (_, address) in self._peers.items() if address == peer), peer)
        session = self._peers.pop(peer, None)
        if session is not None:
            other, address = session
            if address is not None:
                self._hub.hang_up(self, address)
            other.detach(self, "the connection was closed")
        self._waiting.pop(peer, None)
        self._queue = deque(item for item in self._queue if item.peer != peer)

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame] = (), *, later: bool = False) -> Delivery:
        """See `Port.send`."""
        self._check_open()
        session = self._peers.get(peer)
        if session is None:
            raise PeerUnknownError(f"{self._node} has no session with {peer}")
        other, address = session
        limits = self._hub.limits.wire
        check_outgoing(frames, limits)
        queued = encode_checked(message, limits) if self._hub.strict else message
        views, delivery = _lend(frames)
        if not other.enqueue(self._node, queued, views):
            reason = "its queue is full"
            del self._peers[peer]
            self._queue.append(PeerDown(peer, reason))
            other.detach(self, f"ended by the peer (queue-full): {reason}")
            if address is not None:
                self._hub.redial(self, address)
            raise PeerLostError(peer, reason)
        self._counters.sent(views)
        return delivery

    def recv(self, timeout_s: float) -> Event | None:
        """See `Port.recv`. Runs the hub's pumps while it waits."""
        self._check_open()
        event = self._take()
        if event is not None or self._hub.pumping:
            return event
        deadline = time.monotonic() + timeout_s
        while True:
            progress = self._hub.pump()
            event = self._take()
            if event is not None:
                return event
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return None
            if not progress:
                time.sleep(min(remaining_s, _IDLE_S))

    def close(self) -> None:
        """See `Port.close`."""
        if self._closed:
            return
        self._closed = True
        self._hub.remove(self)
        for other, _ in self._peers.values():
            other.detach(self, "the connection was closed")
        self._peers.clear()
        self._queue.clear()

    # ------------------------------------------------------------ the other ports' side

    def attach(self, other: InprocPort, address: str | None) -> None:
        """Begin a session with `other`. It replaces an older session with the same node id."""
        older = self._peers.get(other.node)
        if older is not None:
            self._queue.append(PeerDown(other.node, "replaced by a newer connection"))
            if older[0] is not other:
                older[0].detach(self, "ended by the peer (replaced): a newer connection proved the same node id")
        self._peers[other.node] = (other, address)
        self._queue.append(PeerUp(other.node, address))

    def detach(self, other: InprocPort, reason: str) -> None:
        """End the session with `other`, which asked for it, and queue its `PeerDown`."""
        session = self._peers.get(other.node)
        if session is not None and session[0] is other:
            del self._peers[other.node]
            self._queue.append(PeerDown(other.node, reason))

    def enqueue(self, peer: NodeId, message: Message | bytes, frames: tuple[Frame, ...]) -> bool:
        """Queue a message from `peer`; False if too many messages from `peer` wait already."""
        waiting = self._waiting.get(peer, 0)
        if waiting >= self._hub.limits.queue_messages:
            return False
        self._waiting[peer] = waiting + 1
        self._queue.append(_Queued(peer, message, frames))
        return True

    # ------------------------------------------------------------ inside

    def _check_open(self) -> None:
        if self._closed:
            raise TransportError(f"the port of {self._node} is closed")

    def _take(self) -> Event | None:
        while self._queue:
            item = self._queue.popleft()
            if not isinstance(item, _Queued):
                return item
            event = self._open(*item)
            if event is not None:
                return event
        return None

    def _open(self, peer: NodeId, message: Message | bytes, frames: tuple[Frame, ...]) -> Event | None:
        waiting = self._waiting.get(peer, 0)
        if waiting > 1:
            self._waiting[peer] = waiting - 1
        else:
            self._waiting.pop(peer, None)
        limits = self._hub.limits.wire
        if isinstance(message, bytes):
            opened = open_header(message, limits, self._counters)
            if opened is None:
                return None
            message = opened
        admitted = admit(peer, message, frames, limits, self._counters)
        if isinstance(admitted, Refused):
            # If the session has ended, or this answer ends it, a `PeerDown` reports that.
            with contextlib.suppress(PeerUnknownError, PeerLostError):
                self.send(peer, admitted)
            return None
        return admitted
