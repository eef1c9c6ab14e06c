"""A worker process: the core, a model of symbols, and a script that runs as a generator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from paceline.core.effects import Send
from paceline.core.layout import cut
from paceline.core.worker import Fill, WorkerCore, WorkerState
from paceline.messages import (
    Beat,
    BeginPhase,
    BlockFrame,
    Bye,
    Claim,
    ClaimDone,
    Claimed,
    Declare,
    EvalGrant,
    EvalOver,
    Evaluated,
    Grant,
    Message,
    PhaseBegun,
    PhaseOver,
    Prepare,
    PullReply,
    Push,
    Reachable,
    Refused,
    Register,
    Seal,
    Stop,
    Unreachable,
    Welcome,
)
from paceline.sim.symbols import Buffer, Gradient, Reads, Value, mark
from paceline.sim.world import Node, Violation
from paceline.types import COORDINATOR, INIT_STEP, Kind, NodeId, Sums

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster


class Ask(NamedTuple):
    """The script waits for the answer to a request."""

    make: Callable[[int], Message]


class Sleep(NamedTuple):
    """The script computes."""

    seconds: float


class Ready(NamedTuple):
    """The script waits until the core has something for it."""


Script = Generator[Ask | Sleep | Ready, Message | None, None]
_AWAKE = (WorkerState.COMPUTING, WorkerState.INITIALISING, WorkerState.OVER, WorkerState.ABORTED)


class SimWorker(Node):
    """One start of a worker. What it does by chance comes from `rng` alone."""

    def __init__(self, cluster: Cluster, name: str, node: NodeId, speed: float, rng: Random) -> None:
        super().__init__(node)
        self.cluster = cluster
        self.scenario = cluster.scenario
        self.speed = speed
        self.rng = rng
        introduction = Register(1, "worker", name, cluster.pids, "here", None, self.scenario.job)
        self.core = WorkerCore(introduction, resend_s=self.scenario.resend_s)
        self.blocks = cut(self.scenario.model.tensors)
        self.trained = [b.index for b in self.blocks if b.kind != Kind.FROZEN]
        self.values: list[Value | None] = [None] * len(self.blocks)
        self.versions: list[int] = [-1] * len(self.blocks)
        self.buffers: dict[int, Buffer] = {}
        self.done = False
        self.evicted = False
        self.leaving = False
        self.ended = False
        self.turns = 0
        self._script = self._run()
        self._asked: tuple[Ask, Message, float] | None = None
        self._waits = False
        self._sleeps = False
        self._lies: dict[int, bool] = {}
        self._joining: Message | None = None
        self._evaluating = False
        self._noticed = False
        self._cut_since: dict[NodeId, float] = {}
        self._inbox: deque[tuple[NodeId, Message, tuple[object, ...]]] = deque()

    # ------------------------------------------------------------ events

    def start(self) -> None:
        """The process begins."""
        self._resume(None)
        self._tick()
        self._beat()

    def kill(self) -> None:
        """The process ends without a word."""
        self.alive = False
        self._script.close()

    def notice(self) -> None:
        """There is another coordinator."""
        if self.done:
            return
        if self._sleeps and self.scenario.single_thread:
            self._noticed = True
        else:
            self._greet_coordinator()

    def _greet_coordinator(self) -> None:
        late_s = self.cluster.world.now - self.cluster.restarted_at
        self.evicted |= late_s > self.scenario.cluster.heartbeat_timeout_s / 2  # not to be waited for any longer
        self._send_all(self.core.reconnected(self.cluster.world.now))

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """One message. Where scripts have one thread only, it is looked at when the script waits again."""
        if self._sleeps and self.scenario.single_thread:
            self._inbox.append((sender, message, payload))
        else:
            self._hear(sender, message, payload)

    def _hear(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        if self.done:
            return
        before = self.core.state
        for effect in self.core.handle(sender, message, payload, self.cluster.world.now):
            if isinstance(effect, Fill):
                self._fill(effect, message)
            elif isinstance(effect, Send):
                self._send(effect)
        if self.core.abort is not None:
            if self.core.abort.kind == "rewound":
                self.done = True
                self._script.close()
                self.cluster.again(self)
                return
            if self.cluster.coordinator.core.failure is None:
                raise Violation(f"{self.node} believes that the job failed: {self.core.abort.reason}")
            self.done = True
            self._script.close()
            return
        if isinstance(message, Refused) and message.rule == "unknown":
            self.evicted = True
        self._answer(message)
        if self._waits and self.core.state in _AWAKE and (before not in _AWAKE or self.core.state != before):
            self._waits = False
            self._resume(None)

    def _fill(self, fill: Fill, message: Message) -> None:
        assert isinstance(message, PullReply)
        for frame, value in zip(fill.frames, fill.payload, strict=True):
            assert isinstance(value, Value)
            self.values[frame.block] = value
        if self.core.held[fill.server] == message.version:  # else further parts follow
            for block in self.core.mine[fill.server]:
                self.versions[block] = message.version

    def _answer(self, message: Message) -> None:
        """Requests of the script itself: each ends in its reply; an evicted worker registers and asks anew."""
        if self._joining is not None and isinstance(message, Welcome):
            self._joining = None
            if self._asked is not None:
                self._ask(self._asked[0])
            return
        if self._asked is None or getattr(message, "req", None) != getattr(self._asked[1], "req", -1):
            return
        if isinstance(message, Refused):
            if message.rule != "unknown":
                raise Violation(f"{self.node} was refused: {message}")
            self._joining = self.core.introduce()
            self._send(Send(COORDINATOR, self._joining))
            return
        self._asked = None
        self._resume(message)

    def _tick(self) -> None:
        if self.done:
            return
        world = self.cluster.world
        if not (self._sleeps and self.scenario.single_thread):
            self._send_all(self.core.tick(world.now))
        if self._asked is not None and world.now - self._asked[2] >= self.scenario.resend_s:
            ask, message, _ = self._asked
            self._asked = (ask, message, world.now)
            self._send(Send(COORDINATOR, self._joining or message))
        self._feel(world.now)
        world.after(self.scenario.tick_s, self, self._tick)

    def _feel(self, now: float) -> None:
        """What the transport knows: a session with a primary that has been dead for long, or has come up again."""
        network, placement = self.cluster.network, self.core.placement
        if placement is None or not (network.cuts or self._cut_since):
            return
        for server in self.core.mine:
            if not network.is_cut(self.node, server) and not network.is_cut(server, self.node):
                if self._cut_since.pop(server, None) is not None:
                    self._send(Send(COORDINATOR, Reachable(server)))
                continue
            since = self._cut_since.setdefault(server, now)
            if now - since >= self.scenario.cluster.reach_s:
                self._send(Send(COORDINATOR, Unreachable(server, now - since, placement.epoch)))

    def _beat(self) -> None:
        if self.done:
            return
        self.cluster.network.send(self.node, COORDINATOR, Beat(self.node))
        self.cluster.world.after(self.scenario.cluster.heartbeat_s, self, self._beat)

    def _send(self, send: Send) -> None:
        message = send.message
        if isinstance(message, Push) and message.step != INIT_STEP and self._mangles(message):
            message = msgspec.structs.replace(message, base=-1)
        self.cluster.network.send(self.node, send.to, message, send.payload)

    def _mangles(self, push: Push) -> bool:
        """Whether this push lies about its base. Repetitions of a request are equal, so they all do or none does."""
        if push.req not in self._lies:
            self._lies[push.req] = self.cluster.faults.on and self.rng.random() < self.scenario.habits.mangled
        return self._lies[push.req]

    # ------------------------------------------------------------ the script's side

    def _resume(self, answer: Message | None) -> None:
        world = self.cluster.world
        try:
            wish = self._script.send(answer)
        except StopIteration:
            self.done = True
            world.note("done", self.node)
            self.cluster.goodbye(self)
            return
        match wish:
            case Ask():
                self._ask(wish)
            case Sleep(seconds):
                self._sleeps = True
                world.after(seconds, self, self._woken)
            case Ready():
                if self.core.state in _AWAKE:
                    world.after(0.0, self, self._look)
                self._waits = True
        while self._inbox and not self._sleeps:
            self._hear(*self._inbox.popleft())

    def _look(self) -> None:
        if self._waits and not self.done:
            self._waits = False
            self._resume(None)

    def _woken(self) -> None:
        if self.done:
            return
        self._sleeps = False
        if self._noticed:
            self._noticed = False
            self._greet_coordinator()
        self._resume(None)

    def _ask(self, ask: Ask) -> None:
        message = ask.make(self.core.next_req())
        self._asked = (ask, message, self.cluster.world.now)
        self._send(Send(COORDINATOR, message))

    def _run(self) -> Script:
        scenario = self.scenario
        yield Ask(lambda req: msgspec.structs.replace(self.core.introduction, req=req))
        yield Ask(lambda req: Prepare(req, scenario.model))
        for validator in scenario.validators:
            if validator.every:
                yield Ask(lambda req, v=validator: Declare(req, v))  # type: ignore[misc]
                self.core.declared = validator.number + 1
        for phase in scenario.phases:
            begun = yield Ask(lambda req, p=phase: BeginPhase(req, p))  # type: ignore[misc]
            assert isinstance(begun, PhaseBegun)
            if begun.segment is None:  # the job is over: what is left is to read its final version, and to validate it
                self._send_all(self.core.ask(self.cluster.world.now, phase.number))
                yield from self._loop()
                if isinstance(self.core.task, PhaseOver):
                    self.cluster.checker.phase_ended(self.node, self.core.task, self._reads(), was_there=False)
                break
            self.evicted = False
            joined = len(self.cluster.checker.log)
            began = self.cluster.checker.incarnation
            self._send_all(self.core.ask(self.cluster.world.now, phase.number))
            yield from self._loop()
            if self.leaving and not isinstance(self.core.task, PhaseOver):
                yield Ask(Bye)  # in the middle of the job, with the pushes of its last turn still under way
                return
            over = self.core.task
            assert isinstance(over, PhaseOver)
            line = self.cluster.checker.lines[over.incarnation]
            late = joined > line.phase_versions.get(phase.number, joined) or began != over.incarnation
            self.cluster.checker.phase_ended(
                self.node, over, self._reads(), was_there=self.turns > 0 and not self.evicted and not late
            )
            if over.finished:
                break
            if scenario.evaluate >= 0:
                yield from self._evaluate(phase.number)
        claimed = yield Ask(lambda req: Claim(req, "save"))
        assert isinstance(claimed, Claimed)
        if claimed.mine:
            self.cluster.saves += 1
            yield Sleep(0.05)
            yield Ask(lambda req: ClaimDone(req, "save"))
        yield Ask(Bye)
        self.ended = True

    def _loop(self) -> Script:
        """One phase: take turns until it is over."""
        while True:
            yield Ready()
            task = self.core.task
            if isinstance(task, PhaseOver | EvalOver):
                return
            self.turns += 1
            match task:
                case Grant(step=step) if step == INIT_STEP:
                    yield from self._initialise(task)
                case Grant():
                    yield from self._turn(task)
                case EvalGrant():
                    yield from self._validate(task)
            if self.leaving and not self._evaluating:
                return

    def _evaluate(self, phase: int) -> Script:
        validator = self.scenario.validators[self.scenario.evaluate]
        yield Ask(lambda req: Declare(req, validator))
        self.core.declared = validator.number + 1
        self._evaluating = True
        self._send_all(self.core.ask(self.cluster.world.now, phase, evaluation=self.scenario.evaluate))
        yield from self._loop()
        task = self.core.task
        assert isinstance(task, EvalOver)
        self._evaluating = False

    def _reads(self) -> Reads:
        return Reads(self.core.incarnation, tuple(self.versions), tuple(self.values))

    def _pause(self) -> Sleep:
        mean = self.scenario.habits.mean_turn_s * self.speed
        return Sleep(mean * self.rng.uniform(0.5, 1.5))

    def _initialise(self, task: Grant) -> Script:
        yield self._pause()
        reads = self._reads()
        every = [b.index for b in self.blocks]
        self._push(task, {b: Buffer(Gradient(task.step, 0, task.fence, b, 0, reads)) for b in every}, 0, 1.0)
        self._send_all(self.core.sealed(self.cluster.world.now, 1.0, self._hyper(task), {}, 0.0))

    def _turn(self, task: Grant) -> Script:
        now, habits, rng = self.cluster.world, self.scenario.habits, self.rng
        assert task.segment is not None
        reads = self._reads()
        self.cluster.checker.may_compute(task.step, reads, self.node)
        calm = not self.cluster.faults.on
        # Interchangeable attempts have the same content; of others, each has its own.
        chance = rng
        if self.scenario.model.deterministic and task.segment.window == 0:
            chance = Random(f"slot {self.scenario.seed} {task.step} {task.slot}")
        empty = chance.random() < habits.empty
        present = [b for b in self.trained if chance.random() >= habits.partly_absent]
        spare = {} if self.core.unacked else self.buffers  # reused once nobody reads the last turn's gradients
        self.buffers = {}
        pushed: dict[int, int] = {}
        yield self._pause()
        if not empty:
            for block in present:
                self._write(task, spare, block, 0, reads)
            if rng.random() < habits.provisional:
                for block in present:
                    if rng.random() < 0.6:
                        self._push(task, {block: self.buffers[block]}, 0)
                        pushed[block] = 0
                        yield Sleep(self.rng.uniform(0.0, 0.02) * self.speed)
        if not calm and rng.random() < habits.vanish:
            self.cluster.faults.vanish(self)
            yield Sleep(1e9)
        if self.cluster.stops(task.step):
            yield from self._stop(task)
            if self.cluster.scenario.stop is not None and self.cluster.scenario.stop.at_once:
                return
        if not calm and rng.random() < habits.hand_back:
            self._send_all(self.core.ask(now.now, self.core.phase, abandoned=task.fence))
            return
        weight = 0.0
        if not empty:
            weight = self.cluster.checker.weight(task.segment, task.step, task.slot)
            for block in present:
                if block in pushed and rng.random() < habits.push_again:
                    pushed[block] = 1
                    self._write(task, {}, block, 1, reads)
                    self._push(task, {block: self.buffers[block]}, 1)
        rest = {b: self.buffers[b] for b in present if b not in pushed} if not empty else {}
        revs = {b: pushed.get(b, 0) for b in present} if not empty else {}
        self._push(task, rest, 0, weight, revs)
        self._send_all(self.core.sealed(now.now, weight, self._hyper(task), {"loss": 1.0}, 0.1))
        if not calm and rng.random() < habits.cut_off:
            self.cluster.faults.cut_off(self)

    def _stop(self, task: Grant) -> Script:
        plan = self.scenario.stop
        assert plan is not None
        yield Ask(lambda req: Stop(req, "the plan says so", task.step, plan.at_once))
        if plan.at_once:
            self._send_all(self.core.ask(self.cluster.world.now, self.core.phase, abandoned=task.fence))

    def _validate(self, task: EvalGrant) -> Script:
        yield self._pause()
        self.cluster.checker.has_version(self._reads(), task.version, self.node)
        seen = {value.version for value in self.values if value is not None}
        assert seen
        sums = {
            "version": Sums(float(self.versions[0]), 1.0),
            "slots": Sums(2.0**task.slot, 1.0),
        }
        report = Evaluated(task.round, task.slot, task.fence, sums)
        evaluation = self.scenario.evaluate if self._evaluating else -1
        self._send_all(self.core.ask(self.cluster.world.now, self.core.phase, evaluated=report, evaluation=evaluation))

    def _hyper(self, task: Grant) -> tuple[dict[str, float | int | bool | tuple[float, ...] | None], ...]:
        return ({"lr": 1.0 / (task.step + 2)},)

    def _write(self, task: Grant, spare: dict[int, Buffer], block: int, rev: int, reads: Reads) -> None:
        content = Gradient(task.step, task.slot, task.fence, block, rev, reads)
        buffer = spare.pop(block, None)
        if buffer is None:
            buffer = Buffer(content)
        buffer.content = content
        self.buffers[block] = buffer

    def _push(
        self,
        task: Grant,
        buffers: dict[int, Buffer],
        rev: int,
        weight: float | None = None,
        revs: dict[int, int] | None = None,
    ) -> None:
        """Send gradients to their servers; with a weight, seal the slot on every server."""
        parts: dict[NodeId, tuple[tuple[BlockFrame, ...], Sequence[object], Seal | None]] = {}
        for server, mine in self.core.mine.items():
            here = [b for b in mine if b in buffers]
            seal = None
            if weight is not None:
                sealed = dict.fromkeys(here, rev) if revs is None else {b: r for b, r in revs.items() if b in mine}
                seal = Seal(weight, (mark(task.step, task.slot, task.fence),), tuple(sealed.items()))
            elif not here:
                continue
            frames = tuple(BlockFrame(b, self.blocks[b].dtype, self.blocks[b].numel, rev) for b in here)
            parts[server] = (frames, tuple(buffers[b] for b in here), seal)
        self._send_all(self.core.push(self.cluster.world.now, parts))

    def _send_all(self, sends: list[Send]) -> None:
        for send in sends:
            self._send(send)
