"""Planned faults at the seam between roles: messages doubled, lost or late, by a seed, and counted.

A plan is plain data, so that a launcher can hand it to a role as JSON::

    plan = FaultPlan(seed=7, duplicate={"Push": 0.1}, drop={"PushAck": 0.1}, delay={"Push": (0.05, 0.02)})
    port = FaultyPort(port, plan)
    ...
    assert port.fired["duplicate:Push"] > 0  # the test proves that the fault really happened
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
from paceline.transport.base import Counters, Delivery, Event, Frame, Memory, PeerDown, Port, Received
from paceline.types import NodeId


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages fail, by the name of their type. Each message draws from one seeded generator.

    `duplicate` and `drop` give a probability, `delay` a probability and the seconds by which a message comes
    late (and so after some that were sent later). Names starting with ``recv_`` act on what the port gets,
    the others on what it sends. A drop takes precedence over the other two.
    """

    seed: int | str = 0
    duplicate: dict[str, float] = {}
    drop: dict[str, float] = {}
    delay: dict[str, tuple[float, float]] = {}
    recv_duplicate: dict[str, float] = {}
    recv_drop: dict[str, float] = {}
    recv_delay: dict[str, tuple[float, float]] = {}

    def __post_init__(self) -> None:
        """Refuse what is not a probability or a time."""
        odds = itertools.chain.from_iterable(
            table.values() for table in (self.duplicate, self.drop, self.recv_duplicate, self.recv_drop)
        )
        late = [*self.delay.values(), *self.recv_delay.values()]
        if not all(0.0 <= p <= 1.0 for p in [*odds, *(p for p, _ in late)]):
            raise ValueError(f"a probability lies between 0 and 1: {self}")
        if any(delay_s < 0 for _, delay_s in late):
            raise ValueError(f"a delay is not negative: {self}")

    @classmethod
    def from_dict(cls, plan: Mapping[str, Any]) -> Self:
        """The plan in a JSON-like mapping, as made by `to_dict`.

        Raises:
            ValueError: a field is unknown or of a wrong type.
        """
        return msgspec.convert(plan, cls)

    def to_dict(self) -> dict[str, Any]:
        """The plan as a mapping that survives JSON."""
        plan: dict[str, Any] = msgspec.to_builtins(self)
        return plan


class _Never:
    """The delivery of a message that is lost before the lane sees it."""

    __slots__ = ()
    done = True


class _Both:
    """Done when all sends of one message are; none yet while it is late."""

    __slots__ = ("parts", "pending")

    def __init__(self) -> None:
        self.parts: list[Delivery] = []
        self.pending = True

    @property
    def done(self) -> bool:
        return not self.pending and all(part.done for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Late:
    """A message that is to be sent later."""

    peer: NodeId
    message: Message
    frames: Sequence[Frame]
    copies: int
    delivery: _Both


class FaultyPort:
    """A `Port` that passes everything to `inner`, except for what the plan says.

    Late messages go out from within `recv`, which therefore sleeps no longer than until the next one is due.
    A late message whose session is over by then is lost, as on a network. `on_fired` hears of every fault at once.
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
        """As `Port.node`."""
        return self._inner.node

    @property
    def address(self) -> str | None:
        """As `Port.address`."""
        return self._inner.address

    @property
    def counters(self) -> Counters:
        """As `Port.counters`: what the lane really moved."""
        return self._inner.counters

    @property
    def memory(self) -> Memory:
        """As `Port.memory`."""
        return self._inner.memory

    def connect(self, address: str) -> None:
        """As `Port.connect`."""
        self._inner.connect(address)

    def disconnect(self, peer: NodeId) -> None:
        """As `Port.disconnect`."""
        self._inner.disconnect(peer)
        self._incoming = [entry for entry in self._incoming if entry[2].peer != peer]
        heapq.heapify(self._incoming)

    def send(self, peer: NodeId, message: Message, frames: Sequence[Frame] = ()) -> Delivery:
        """As `Port.send`, or not at all, twice, or later."""
        plan, name = self._plan, type(message).__name__
        if self._fires("drop", plan.drop.get(name, 0.0), name):
            return _Never()
        copies = 2 if self._fires("duplicate", plan.duplicate.get(name, 0.0), name) else 1
        odds, delay_s = plan.delay.get(name, (0.0, 0.0))
        if self._fires("delay", odds, name):
            late = _Late(peer, message, frames, copies, _Both())
            heapq.heappush(self._outgoing, (time.monotonic() + delay_s, next(self._order), late))
            return late.delivery
        if copies == 1:
            return self._inner.send(peer, message, frames)
        both = _Both()
        both.pending = False
        both.parts = [self._inner.send(peer, message, frames) for _ in range(copies)]
        return both

    def recv(self, timeout_s: float) -> Event | None:
        """As `Port.recv`."""
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
                    self._hurry(event.peer)
                    self._hold(event, 0.0)
                    continue
                return event

    def close(self) -> None:
        """As `Port.close`; late messages are lost."""
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
        """Whether the role sees `event` now."""
        plan, name = self._plan, type(event.message).__name__
        if self._fires("recv_drop", plan.recv_drop.get(name, 0.0), name):
            return False
        if self._fires("recv_duplicate", plan.recv_duplicate.get(name, 0.0), name):
            self._hold(event, 0.0)
        odds, delay_s = plan.recv_delay.get(name, (0.0, 0.0))
        if self._fires("recv_delay", odds, name):
            self._hold(event, delay_s)
            return False
        return True

    def _hold(self, event: Event, delay_s: float) -> None:
        heapq.heappush(self._incoming, (time.monotonic() + delay_s, next(self._order), event))

    def _hurry(self, peer: NodeId) -> None:
        """What a peer sent comes before the news that it is down."""
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
                    late.delivery.parts.append(self._inner.send(late.peer, late.message, late.frames))
            except (PeerLostError, PeerUnknownError):
                self.fired["late-lost"] = self.fired.get("late-lost", 0) + 1
            late.delivery.pending = False
