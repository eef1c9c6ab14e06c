"""A port with planned faults: it duplicates, drops or delays messages, chosen by a seed, and counts these faults.

A plan is plain data, so a launcher can give it to a role as JSON::

    plan = FaultPlan(seed=7, duplicate={"Push": 0.1}, drop={"PushAck": 0.1}, delay={"Push": (0.05, 0.02)})
    port = FaultyPort(port, plan)
    ...
    assert port.fired["duplicate:Push"] > 0  # the fault has happened
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from paceline.errors import PeerLostError, PeerUnknownError
from paceline.messages import Message
from paceline.transport.base import COPIED, Counters, Delivery, Event, Frame, Memory, PeerDown, Port, Received
from paceline.types import NodeId


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages fail, by the name of the message type. All draws come from one seeded random generator.

    `duplicate` and `drop` give a probability. `delay` gives a probability and a delay in seconds, so a delayed message
    may arrive after messages that were sent later. Fields that start with ``recv_`` act on received messages, the other
    fields on sent messages. A dropped message has no other fault.
    """

    seed: int | str = 0
    duplicate: dict[str, float] = {}
    drop: dict[str, float] = {}
    delay: dict[str, tuple[float, float]] = {}
    recv_duplicate: dict[str, float] = {}
    recv_drop: dict[str, float] = {}
    recv_delay: dict[str, tuple[float, float]] = {}

    def __post_init__(self) -> None:
        """Refuse probabilities outside 0 to 1 and negative delays."""
        odds = itertools.chain.from_iterable(
            table.values() for table in (self.duplicate, self.drop, self.recv_duplicate, self.recv_drop)
        )
        late = [*self.delay.values(), *self.recv_delay.values()]
        if not all(0.0 <= p <= 1.0 for p in [*odds, *(p for p, _ in late)]):
            raise ValueError(f"every probability must be between 0 and 1: {self}")
        if any(delay_s < 0 for _, delay_s in late):
            raise ValueError(f"every delay must be 0 or more: {self}")

    @classmethod
    def from_dict(cls, plan: Mapping[str, Any]) -> Self:
        """Read a plan from a mapping that `to_dict` made.

        Raises:
            ValueError: a field is unknown or of a wrong type.
        """
        return msgspec.convert(plan, cls)

    def to_dict(self) -> dict[str, Any]:
        """The plan as a mapping that JSON can hold."""
        plan: dict[str, Any] = msgspec.to_builtins(self)
        return plan


class _Sends:
    """The `Delivery` of a message that may be sent twice or late: done when every send was made and is done."""

    __slots__ = ("_made", "_sends")

    def __init__(self) -> None:
        self._sends: list[Delivery] = []
        self._made = False

    @property
    def done(self) -> bool:
        return self._made and all(send.done for send in self._sends)

    def add(self, send: Delivery) -> None:
        """Add the delivery of one send of the message."""
        self._sends.append(send)

    def all_made(self) -> None:
        """Note that the message will not be sent again."""
        self._made = True


@dataclass(frozen=True, slots=True)
class _Late:
    """A delayed message, to be sent `copies` times when its delay is over."""

    peer: NodeId
    message: Message
    frames: Sequence[Frame]
    copies: int
    delivery: _Sends


class FaultyPort:
    """A `Port` that passes everything to `inner`, except for the faults of the plan.

    `recv` also sends delayed messages when their time has come. A delayed message whose session has ended meanwhile is
    lost, as on a network. The port calls `on_fired` with the name of each fault when it happens.
    """

    def __init__(self, inner: Port, plan: FaultPlan, on_fired: Callable[[str], None] = lambda key: None) -> None:
        self._inner = inner
        self._plan = plan
        self._on_fired = on_fired
        self._random = random.Random(plan.seed)
        self._order = itertools.count()
        self._outgoing: list[tuple[float, int, _Late]] = []
        self._incoming: list[tuple[float, int, Event]] = []
        self.fired: dict[str, int] = {}

    @property
    def node(self) -> NodeId:
        """See `Port.node`."""
        return self._inner.node

    @property
    def address(self) -> str | None:
        """See `Port.address`."""
        return self._inner.address

    @property
    def counters(self) -> Counters:
        """See `Port.counters`. They count what `inner` has sent and received."""
        return self._inner.counters

    @property
    def memory(self) -> Memory:
        """See `Port.memory`."""
        return self._inner.memory

    def connect(self, address: str) -> None:
        """See `Port.connect`."""
        self._inner.connect(address)

    def disconnect(self, peer: NodeId) -> None:
        """See `Port.disconnect`."""
        self._inner.disconnect(peer)
        self._incoming = [entry for entry in self._incoming if entry[2].peer != peer]
        heapq.heapify(self._incoming)

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame] = (), *, later: bool = False) -> Delivery:
        """See `Port.send`. With a fault, the message is dropped, sent twice, or sent later."""
        plan, name = self._plan, type(message).__name__
        if self._fires("drop", plan.drop.get(name, 0.0), name):
            return COPIED
        copies = 2 if self._fires("duplicate", plan.duplicate.get(name, 0.0), name) else 1
        odds, delay_s = plan.delay.get(name, (0.0, 0.0))
        if self._fires("delay", odds, name):
            late = _Late(peer, message, frames, copies, _Sends())
            heapq.heappush(self._outgoing, (time.monotonic() + delay_s, next(self._order), late))
            return late.delivery
        if copies == 1:
            return self._inner.send(peer, message, frames, later=later)
        twice = _Sends()
        for _ in range(copies):
            twice.add(self._inner.send(peer, message, frames))
        twice.all_made()
        return twice

    def recv(self, timeout_s: float) -> Event | None:
        """See `Port.recv`."""
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            self._send_due(now)
            if self._incoming and self._incoming[0][0] <= now:
                return heapq.heappop(self._incoming)[2]
            wait_s = max(min(deadline, *self._next_due()) - now, 0.0)
            event = self._inner.recv(wait_s)
            if event is None:
                if time.monotonic() >= deadline:
                    return None
            elif isinstance(event, Received):
                if self._arrives(event):
                    return event
            else:
                if isinstance(event, PeerDown):
                    self._release(event.peer)
                    self._postpone(event, 0.0)
                    continue
                return event

    def close(self) -> None:
        """See `Port.close`. Delayed messages are lost."""
        self._outgoing.clear()
        self._incoming.clear()
        self._inner.close()

    # ------------------------------------------------------------ inside

    def _fires(self, fault: str, odds: float, name: str) -> bool:
        if not odds or self._random.random() >= odds:
            return False
        key = f"{fault}:{name}"
        self.fired[key] = self.fired.get(key, 0) + 1
        self._on_fired(key)
        return True

    def _arrives(self, event: Received) -> bool:
        """Apply the planned faults to a received message; True if `recv` returns it now."""
        plan, name = self._plan, type(event.message).__name__
        if self._fires("recv_drop", plan.recv_drop.get(name, 0.0), name):
            return False
        if self._fires("recv_duplicate", plan.recv_duplicate.get(name, 0.0), name):
            self._postpone(event, 0.0)
        odds, delay_s = plan.recv_delay.get(name, (0.0, 0.0))
        if self._fires("recv_delay", odds, name):
            self._postpone(event, delay_s)
            return False
        return True

    def _postpone(self, event: Event, delay_s: float) -> None:
        heapq.heappush(self._incoming, (time.monotonic() + delay_s, next(self._order), event))

    def _release(self, peer: NodeId) -> None:
        """Make the delayed messages from `peer` due now, so that the role sees them before the `PeerDown` of `peer`."""
        now = time.monotonic()
        self._incoming = [
            (min(due, now) if event.peer == peer else due, order, event) for due, order, event in self._incoming
        ]
        heapq.heapify(self._incoming)

    def _next_due(self) -> list[float]:
        return [heap[0][0] for heap in (self._outgoing, self._incoming) if heap] or [float("inf")]

    def _send_due(self, now: float) -> None:
        while self._outgoing and self._outgoing[0][0] <= now:
            late = heapq.heappop(self._outgoing)[2]
            try:
                for _ in range(late.copies):
                    late.delivery.add(self._inner.send(late.peer, late.message, late.frames))
            except (PeerLostError, PeerUnknownError):
                self.fired["late-lost"] = self.fired.get("late-lost", 0) + 1
            late.delivery.all_made()
