"""A worker that asks samplers: whom it asks for a slot, how long it waits, and when it prepares the slot itself."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.sampler.choice import ranked
from paceline.types import NodeId, Segment, SlotId, name_of

_PATIENCE_S = (0.25, 5.0)  # the shortest and the longest wait for one sampler
_FIRST_PATIENCE_S = 1.0
_SLOTS = 4.0  # a worker waits as long as a sampler takes to prepare so many slots
_DOUBT_S = (1.0, 30.0)  # a sampler that did not answer in time is not asked for so long; each time twice as long


class Asking:
    """One question at a time, for the slot of the worker's lease.

    `node` is the sampler that is asked now; None if the worker must prepare the slot itself. Samplers without a
    session are not asked: whoever waits for one waits for a process that may be gone.
    """

    def __init__(self) -> None:
        self.node: NodeId | None = None
        self.addresses: dict[NodeId, str] = {}
        self._up: set[NodeId] = set()
        self._left: list[NodeId] = []
        self._deadline = 0.0
        self._patience_s = _FIRST_PATIENCE_S
        self._doubted: dict[NodeId, tuple[float, float]] = {}

    # ------------------------------------------------------------ who is there

    def roster(self, samplers: Mapping[NodeId, str]) -> tuple[list[str], list[str]]:
        """Note which samplers there are; returns the addresses to connect to, and those to disconnect from."""
        new = [address for node, address in samplers.items() if self.addresses.get(node) != address]
        gone = [address for node, address in self.addresses.items() if samplers.get(node) != address]
        self.addresses = dict(samplers)
        self._up &= samplers.keys()
        self._doubted = {node: doubt for node, doubt in self._doubted.items() if node in samplers}
        return new, gone

    def is_sampler(self, peer: NodeId) -> bool:
        """Whether `peer` is a sampler of the job."""
        return peer in self.addresses

    def up(self, node: NodeId) -> None:
        """A session with a sampler has begun."""
        self._up.add(node)

    def down(self, node: NodeId, now: float) -> NodeId | None:
        """The session with a sampler has ended; returns the sampler to ask in its place, if it was asked."""
        self._up.discard(node)
        return self.next(now) if node == self.node else None

    @property
    def has_samplers(self) -> bool:
        """Whether there is a sampler that can be asked."""
        return bool(self._up)

    # ------------------------------------------------------------ one question

    def begin(self, segment: Segment, slot: SlotId, now: float) -> NodeId | None:
        """The sampler to ask for `slot`; None if there is none."""
        by_name = {name_of(node): node for node in self.addresses}
        nodes = [by_name[name] for name in ranked(list(by_name), segment, slot)]
        self._left = [node for node in nodes if node in self._up and not self._is_doubted(node, now)]
        return self.next(now)

    def first(self, segment: Segment, slot: SlotId, now: float) -> NodeId | None:
        """The sampler to ask for `slot` before it is leased, while nobody waits for it; None if there is none."""
        by_name = {name_of(node): node for node in self.addresses}
        node = by_name[ranked(list(by_name), segment, slot)[0]] if by_name else None
        return node if node in self._up and not self._is_doubted(node, now) else None

    def next(self, now: float) -> NodeId | None:
        """The sampler to ask after the one before has refused or is gone; None if none is left."""
        self.node = self._left.pop(0) if self._left else None
        self._deadline = now + self._patience_s
        return self.node

    def wait_s(self, now: float) -> float:
        """How long to wait for the sampler that is asked now."""
        return max(0.0, self._deadline - now)

    def late(self, now: float) -> NodeId | None:
        """The sampler did not answer in time; returns the one to ask next. It is left alone for a while."""
        node = self.node
        if node is not None:
            before = self._doubted.get(node, (0.0, _DOUBT_S[0] / 2))[1]
            pause_s = min(2 * before, _DOUBT_S[1])
            self._doubted[node] = now + pause_s, pause_s
        return self.next(now)

    def answered(self, seconds: float) -> None:
        """The sampler has answered; it took `seconds` to prepare the slot."""
        if self.node is not None:
            self._doubted.pop(self.node, None)
        low, high = _PATIENCE_S
        self._patience_s = min(max(_SLOTS * seconds, 0.75 * self._patience_s, low), high)
        self.node = None

    def _is_doubted(self, node: NodeId, now: float) -> bool:
        return now < self._doubted.get(node, (0.0, 0.0))[0]
