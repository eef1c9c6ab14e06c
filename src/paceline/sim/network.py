"""The simulated network: it drops, delays, duplicates and reorders messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from random import Random

from paceline.messages import Message
from paceline.sim.symbols import Buffer
from paceline.sim.world import Node, World
from paceline.types import NodeId

_MAX_DROPS_IN_A_ROW = 3  # messages on one link; dropping more would be a cut, which is a separate fault

CUTS = ("symmetric", "one-way", "flapping")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How unreliable the network is. With `reorder`, messages between two nodes may overtake each other."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: bool = False
    min_delay_s: float = 0.001
    mean_delay_s: float = 0.004


@dataclass(slots=True)
class _Link:
    mean_delay_s: float
    free_at: float = 0.0
    drops: int = 0


class Network:
    """Carries messages between processes. It does not copy payloads: the receiver sees later changes by the sender."""

    def __init__(self, world: World, weather: Weather, rng: Random) -> None:
        self.world = world
        self.weather = weather
        self.rng = rng
        self.processes: dict[NodeId, Node] = {}
        self.cuts: dict[tuple[NodeId, NodeId], list[tuple[float, float]]] = {}
        self.dropped = 0
        self.duplicated = 0
        self._links: dict[tuple[NodeId, NodeId], _Link] = {}
        self._random = rng.random

    def add(self, process: Node) -> None:
        """Make `process` reachable."""
        self.processes[process.node] = process

    def heal(self, mean_delay_s: float) -> None:
        """Deliver every message once and in order from now on, with a mean delay of at most `mean_delay_s`."""
        mean_s = min(self.weather.mean_delay_s, mean_delay_s)
        self.weather = Weather(min_delay_s=self.weather.min_delay_s, mean_delay_s=mean_s)
        self.cuts.clear()
        for link in self._links.values():
            link.mean_delay_s = min(link.mean_delay_s, mean_delay_s)

    def cut(self, a: NodeId, b: NodeId, seconds: float, kind: str = "symmetric") -> None:
        """Drop the messages between nodes `a` and `b` for some seconds.

        A ``one-way`` cut drops only messages from `a` to `b`; a ``flapping`` cut begins and ends again and again.
        """
        now = self.world.now
        spans = [(now, now + seconds)]
        if kind == "flapping":
            spans = [(now + n * seconds / 7, now + (n + 1) * seconds / 7) for n in (0, 2, 4, 6)]
        for pair in ((a, b),) if kind == "one-way" else ((a, b), (b, a)):
            self.cuts.setdefault(pair, []).extend(spans)

    def is_cut(self, a: NodeId, b: NodeId) -> bool:
        """Whether messages from `a` to `b` are dropped now."""
        spans = self.cuts.get((a, b))
        return spans is not None and any(start <= self.world.now < end for start, end in spans)

    def send(self, sender: NodeId, to: NodeId, message: Message, payload: Sequence[object] = ()) -> None:
        """Send a message, which may be dropped, delayed or duplicated."""
        target = self.processes.get(to)
        if target is None:
            return
        link = self._links.get((sender, to))
        if link is None:
            spread = self.rng.uniform(0.3, 3.0)
            link = self._links[sender, to] = _Link(self.weather.mean_delay_s * spread)
        world, weather = self.world, self.weather
        if (self.cuts or weather.drop) and self._lost(sender, to, link):
            self.dropped += 1
            world.note("drop", sender, to, message)
            return
        copies = 1
        if weather.duplicate and self._random() < weather.duplicate:
            self.duplicated += 1
            copies = 2
        for _ in range(copies):
            delay = weather.min_delay_s - log(1.0 - self._random()) * link.mean_delay_s
            if not weather.reorder:
                delay = max(delay, link.free_at - world.now)
                link.free_at = world.now + delay
            world.after(delay, target, self._deliver, sender, target, message, payload)

    def _lost(self, sender: NodeId, to: NodeId, link: _Link) -> bool:
        if self.cuts and self.is_cut(sender, to):
            return True
        if not self.weather.drop or link.drops >= _MAX_DROPS_IN_A_ROW or self.rng.random() >= self.weather.drop:
            link.drops = 0
            return False
        link.drops += 1
        return True

    def _deliver(self, sender: NodeId, target: Node, message: Message, payload: Sequence[object]) -> None:
        world = self.world
        if world.trace is not None:  # not by `note`, because a call costs time and this is the most frequent event
            world.trace.note(world.now, "deliver", target.node, sender, message)
        target.receive(sender, message, tuple([p.content if isinstance(p, Buffer) else p for p in payload]))
