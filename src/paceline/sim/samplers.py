"""Samplers and the workers that ask them, under a virtual clock: the real cores, and a symbol for each batch.

The coordinator is played by a list: slots are leased in order, those of a step once the step before is complete.
Samplers are killed and started again, stop for a while, and messages are lost. `play` checks that every slot is
computed once, on its own batch; the record says how often each slot was prepared, and why.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from paceline.core.sampler.asking import Asking
from paceline.core.sampler.preparing import Answer, Drop, Effect, Refuse, SamplerCore
from paceline.messages import AskSlot
from paceline.types import NodeId, Segment, SlotId

_DATA = "data"
_LIMIT = 1 << 30
_DELAY_S = 0.001
_AWAY_S = 0.3
"""Seconds after which a killed sampler is there again."""

_STOPPED_S = 3.0

Symbol = tuple[int, int, int]
"""The batch of a slot: revision, step and slot."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What is played: so many workers and samplers, steps and slots; the seconds of a turn and of a preparation.

    `kills` samplers are killed, `stops` are stopped for a while, and a part `loss` of the messages is lost.
    """

    workers: int = 2
    samplers: int = 2
    steps: int = 100
    slots: int = 4
    turn_s: float = 0.01
    prepare_s: float = 0.01
    kills: int = 0
    stops: int = 0
    loss: float = 0.0


@dataclass(slots=True)
class Record:
    """What happened: how often samplers prepared each slot, what workers prepared, who computed what on what."""

    by_samplers: Counter[SlotId] = field(default_factory=Counter)
    by_workers: Counter[SlotId] = field(default_factory=Counter)
    computed: dict[SlotId, Symbol] = field(default_factory=dict)
    events: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def twice(self) -> list[SlotId]:
        """The slots that were prepared more than once."""
        return [slot for slot, times in (self.by_samplers + self.by_workers).items() if times > 1]


@dataclass(slots=True)
class _Sampler:
    name: str
    core: SamplerCore
    start: int = 1
    alive: bool = True
    stopped: bool = False
    busy: bool = False
    inbox: deque[Callable[[], None]] = field(default_factory=deque)

    @property
    def node(self) -> NodeId:
        return f"{self.name}/{self.start}"


@dataclass(slots=True)
class _Worker:
    node: NodeId
    asking: Asking = field(default_factory=Asking)
    slot: SlotId | None = None
    req: int = 0
    since: float = 0.0


class SamplerWorld:
    """One seeded run of `shape`."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.record = Record()
        samples = shape.steps * shape.slots
        self.segment = Segment(0, 0, 0, 0, shape.steps, 1, samples, shape.slots, 1, True, False, 0, "bsp")
        self._rng = random.Random(seed)
        self._now = 0.0
        self._count = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free: deque[SlotId] = deque()
        self._open = -1
        self._idle: deque[_Worker] = deque()
        self._samplers = {f"sampler-{i}": self._fresh(f"sampler-{i}") for i in range(shape.samplers)}
        self._workers = [_Worker(f"worker-{i}/1") for i in range(shape.workers)]

    def play(self) -> Record:
        """Play until every slot is computed.

        Raises:
            AssertionError: a slot was not computed, or on another batch.
        """
        self._meet()
        self._plan_faults()
        self._idle.extend(self._workers)
        self._lease()
        while self._events and len(self.record.computed) < self.shape.steps * self.shape.slots:
            self._now, _, act = heapq.heappop(self._events)
            self.record.events += 1
            act()
        self.record.seconds = self._now
        expected = {SlotId(t, i): (0, t, i) for t in range(self.shape.steps) for i in range(self.shape.slots)}
        assert self.record.computed == expected, "a slot was not computed, or on another batch"
        return self.record

    def _at(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + delay_s, next(self._count), act))

    def _send(self, act: Callable[[], None]) -> None:
        if self._rng.random() >= self.shape.loss:
            self._at(_DELAY_S * (0.5 + self._rng.random()), act)

    # ------------------------------------------------------------ workers

    def _lease(self) -> None:
        if not self._free and len(self.record.computed) == (self._open + 1) * self.shape.slots:
            self._open += 1
            if self._open < self.shape.steps:
                self._free.extend(SlotId(self._open, i) for i in range(self.shape.slots))
        while self._free and self._idle:
            worker, slot = self._idle.popleft(), self._free.popleft()
            worker.slot, worker.since = slot, self._now
            self._ask(worker, worker.asking.begin(self.segment, slot, self._now))

    def _ask(self, worker: _Worker, node: NodeId | None) -> None:
        slot = worker.slot
        assert slot is not None
        worker.req += 1
        if node is None:
            self.record.by_workers[slot] += 1
            self._at(self.shape.prepare_s, lambda: self._compute(worker, slot, (0, *slot)))
            return
        req = worker.req
        message = AskSlot(req, _DATA, self.segment, slot.step, slot.slot)
        self._send(lambda: self._deliver(node, lambda sampler: sampler.core.ask(worker.node, message)))
        self._at(worker.asking.wait_s(self._now) + 1e-9, lambda: self._late(worker, req))

    def _late(self, worker: _Worker, req: int) -> None:
        if worker.req == req and worker.asking.node is not None:
            self._ask(worker, worker.asking.late(self._now))

    def _answered(self, node: NodeId, req: int, symbol: Symbol | None) -> None:
        worker = next(worker for worker in self._workers if worker.node == node)
        if worker.req != req or worker.asking.node is None or worker.slot is None:
            return
        if symbol is None:
            self._ask(worker, worker.asking.next(self._now))
        else:
            worker.asking.answered(self.shape.prepare_s)
            self._compute(worker, worker.slot, symbol)

    def _compute(self, worker: _Worker, slot: SlotId, symbol: Symbol) -> None:
        self.record.waited += self._now - worker.since
        self._at(self.shape.turn_s, lambda: self._sealed(worker, slot, symbol))

    def _sealed(self, worker: _Worker, slot: SlotId, symbol: Symbol) -> None:
        assert slot not in self.record.computed, f"{slot} was computed twice"
        self.record.computed[slot] = symbol
        self._idle.append(worker)
        self._lease()

    # ------------------------------------------------------------ samplers

    def _fresh(self, name: str, start: int = 1) -> _Sampler:
        core = SamplerCore(name, _DATA, _LIMIT)
        core.roster(tuple(f"sampler-{i}" for i in range(self.shape.samplers)))
        return _Sampler(name, core, start)

    def _meet(self) -> None:
        """All workers learn who the samplers are, and have a session with those that live."""
        nodes = {sampler.node: sampler.name for sampler in self._samplers.values()}
        for worker in self._workers:
            worker.asking.roster(nodes)
            for sampler in self._samplers.values():
                if sampler.alive:
                    worker.asking.up(sampler.node)

    def _deliver(self, node: NodeId, ask: Callable[[_Sampler], list[Effect]]) -> None:
        sampler = next((s for s in self._samplers.values() if s.node == node), None)
        if sampler is None or not sampler.alive:
            return
        if sampler.stopped:
            sampler.inbox.append(lambda: self._deliver(node, ask))
            return
        self._carry_out(sampler, ask(sampler))
        self._work(sampler)

    def _work(self, sampler: _Sampler) -> None:
        if sampler.busy or sampler.stopped or (task := sampler.core.next_slot()) is None:
            return
        sampler.busy = True
        start = sampler.start
        self._at(self.shape.prepare_s, lambda: self._prepared(sampler, start, *task))

    def _prepared(self, sampler: _Sampler, start: int, segment: Segment, slot: SlotId) -> None:
        if sampler.start != start or not sampler.alive:
            return
        if sampler.stopped:
            sampler.inbox.append(lambda: self._prepared(sampler, start, segment, slot))
            return
        sampler.busy = False
        self.record.by_samplers[slot] += 1
        self._carry_out(sampler, sampler.core.prepared(segment, slot, 1))
        self._work(sampler)

    def _carry_out(self, sampler: _Sampler, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(question=question, slot=slot):
                    self._reply(question.peer, question.req, (0, *slot))
                case Refuse(question=question):
                    self._reply(question.peer, question.req, None)
                case Drop():
                    pass

    def _reply(self, node: NodeId, req: int, symbol: Symbol | None) -> None:
        self._send(lambda: self._answered(node, req, symbol))

    # ------------------------------------------------------------ faults

    def _plan_faults(self) -> None:
        shape = self.shape
        long_s = shape.steps * shape.slots * max(shape.turn_s, shape.prepare_s) / max(1, shape.workers)
        for _ in range(shape.kills):
            self._at(self._rng.random() * long_s, lambda: self._kill(self._rng.choice([*self._samplers.values()])))
        for _ in range(shape.stops):
            self._at(self._rng.random() * long_s, lambda: self._stop(self._rng.choice([*self._samplers.values()])))

    def _kill(self, sampler: _Sampler) -> None:
        if not sampler.alive:
            return
        sampler.alive = False
        for worker in self._workers:
            was_asked = worker.asking.node == sampler.node
            node = worker.asking.down(sampler.node, self._now)
            if was_asked:
                self._ask(worker, node)
        self._at(_AWAY_S, lambda: self._restart(sampler.name, sampler.start + 1))

    def _restart(self, name: str, start: int) -> None:
        self._samplers[name] = self._fresh(name, start)
        self._meet()

    def _stop(self, sampler: _Sampler) -> None:
        sampler.stopped = True
        self._at(_STOPPED_S, lambda: self._go_on(sampler))

    def _go_on(self, sampler: _Sampler) -> None:
        sampler.stopped = False
        while sampler.inbox:
            sampler.inbox.popleft()()


def play(shape: Shape, seed: int = 0) -> Record:
    """Play one seeded run of `shape`; see `SamplerWorld.play`."""
    return SamplerWorld(shape, seed).play()
