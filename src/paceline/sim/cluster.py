"""All processes of one simulated job, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from paceline.core.coordinator import CoordinatorCore
from paceline.core.effects import Effect, Send, Write
from paceline.core.membership import RunningTime
from paceline.core.server import ServerCore
from paceline.messages import (
    Abort,
    Committed,
    Exited,
    GiveBack,
    Message,
    Pull,
    PullReply,
    Push,
    Register,
    Revoke,
    Turn,
    Welcome,
)
from paceline.sim.checks import Checker
from paceline.sim.network import Network
from paceline.sim.scenario import Fault, Scenario
from paceline.sim.symbols import SymbolStore
from paceline.sim.worker import SimWorker
from paceline.sim.world import Process, Trace, World
from paceline.types import COORDINATOR, NodeId


class SimCoordinator(Process):
    """The coordinator process; its durable log is the checker's."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(COORDINATOR)
        self.cluster = cluster
        self.core = CoordinatorCore(cluster.scenario.cluster, cluster.scenario.generation)
        self.timer: Callable[[], float] | None = None
        self.spent_s = 0.0
        self._running = RunningTime()
        self._members = 0

    def start(self) -> None:
        """The process begins."""
        self._tick()

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """One message."""
        match message:
            case GiveBack(fence=fence):
                self.cluster.checker.voids(fence)
            case Turn(abandoned=abandoned) if abandoned is not None:
                self.cluster.checker.voids(abandoned)
        now = self._running.advance(self.cluster.world.now)
        if self.timer is None:
            self._carry_out(self.core.handle(sender, message, payload, now))
            return
        began = self.timer()
        effects = self.core.handle(sender, message, payload, now)
        self.spent_s += self.timer() - began
        self._carry_out(effects)

    def lost(self, node: NodeId) -> None:
        """A session ended."""
        now = self._running.advance(self.cluster.world.now)
        self._carry_out(self.core.lost(node, "the session ended", now))

    def _tick(self) -> None:
        now = self._running.advance(self.cluster.world.now)
        self._carry_out(self.core.tick(now))
        self.cluster.world.after(0.1, self, self._tick)

    def _carry_out(self, effects: list[Effect]) -> None:
        checker, members = self.cluster.checker, self.core.members.members
        if len(members) < self._members:
            for node in [n for n in checker.by_worker if n not in members]:
                checker.lost(node)
        self._members = len(members)
        for effect in effects:
            if isinstance(effect, Write):
                checker.wrote(effect)
            else:
                checker.sends(effect)
                self.cluster.network.send(COORDINATOR, effect.to, effect.message)


class SimServer(Process):
    """A parameter server process."""

    def __init__(self, cluster: Cluster, name: str, node: NodeId) -> None:
        super().__init__(node)
        self.cluster = cluster
        self.introduction = Register(1, "server", name, 1, "here", f"sim://{node}")
        self.store = SymbolStore(cluster.checker)
        self.core = ServerCore(node, self.store, heartbeat_s=cluster.scenario.cluster.heartbeat_s)
        self._welcome = False

    def start(self) -> None:
        """The process begins."""
        self._register()
        self._tick()

    def _register(self) -> None:
        if not self._welcome:
            self._send([Send(COORDINATOR, self.introduction)])
            self.cluster.world.after(0.5, self, self._register)

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """One message."""
        if isinstance(message, Welcome):
            self._welcome = True
            return
        self._send(self.core.handle(sender, message, payload, self.cluster.world.now))
        if isinstance(message, Push):
            self.cluster.checker.held(self.core, message.step)

    def _tick(self) -> None:
        self._send(self.core.tick(self.cluster.world.now))
        self.cluster.world.after(0.1, self, self._tick)

    def _send(self, sends: list[Send]) -> None:
        for send in sends:
            if isinstance(send.message, PullReply):
                self.cluster.checker.replied(self.core, send.message)
            self.cluster.network.send(self.node, send.to, send.message, send.payload)


class Cluster:
    """One job from its first process to its last."""

    def __init__(self, scenario: Scenario, trace: Trace | None) -> None:
        self.scenario = scenario
        self.world = World(trace)
        self.checker = Checker(scenario)
        self.network = Network(self.world, scenario.weather, Random(f"network {scenario.seed}"))
        self.rng = Random(f"faults {scenario.seed}")
        self.coordinator = SimCoordinator(self)
        self.servers = [SimServer(self, f"server-{i}", f"server-{i}") for i in range(scenario.cluster.servers)]
        self.workers: list[SimWorker] = []
        self.pids = 0
        self.faulty = scenario.heal_at_s > 0
        self.fired: dict[str, int] = {}
        self.saves = 0
        self.stopped = False
        self.finished_workers = 0
        self._clock = Process("faults")

    def start(self) -> None:
        """Start every role, in an order of chance, and plan the faults."""
        roles: list[SimCoordinator | SimServer] = [self.coordinator, *self.servers]
        for role in roles:
            self.network.add(role)
            self.world.after(self.rng.uniform(0.0, 0.3), role, role.start)
        for index in range(self.scenario.cluster.workers):
            self.spawn(index, self.rng.uniform(0.0, 0.3))
        for fault in self.scenario.faults:
            self.world.after(fault.at_s, self._clock, self._inject, fault)
        self.world.after(self.scenario.heal_at_s, self._clock, self._heal)

    def spawn(self, index: int, delay: float) -> SimWorker:
        """A new worker process in place `index`."""
        self.pids += 1
        node = f"worker-{index}/{self.pids}"
        speed = self.scenario.speeds[index % len(self.scenario.speeds)]
        rng = Random(f"worker {self.scenario.seed} {self.pids}")
        worker = SimWorker(self, f"worker-{index}", node, speed, rng)
        self.workers.append(worker)
        self.network.add(worker)
        self.world.after(delay, worker, worker.start)
        return worker

    def goodbye(self, worker: SimWorker) -> None:
        """A script has ended. When it left in the middle and was the last, somebody comes after it."""
        self.finished_workers += 1
        if not worker.ended and not self._running():
            self.spawn(0, 0.1)

    # ------------------------------------------------------------ faults

    def _running(self) -> list[SimWorker]:
        return [w for w in self.workers if w.alive and not w.done]

    def vanish(self, worker: SimWorker) -> None:
        """A worker dies; whether and when the others notice, and whether it is replaced, is chance."""
        self._count("vanish")
        worker.alive = False
        self._mourn(worker)

    def cut_off(self, worker: SimWorker) -> None:
        """The coordinator's session with a worker ends about when its report arrives; the worker does not know."""
        self._count("cut-off")
        delay = self.rng.uniform(0.0, 3.0) * self.scenario.weather.mean_delay_s
        self.world.after(delay, self.coordinator, self.coordinator.lost, worker.node)

    def stops(self, step: int) -> bool:
        """Whether the worker that has `step` in hand is the one to stop the job; True once."""
        plan = self.scenario.stop
        if plan is None or self.stopped or step < plan.step:
            return False
        self.stopped = True
        return True

    def _count(self, kind: str) -> None:
        self.fired[kind] = self.fired.get(kind, 0) + 1
        self.world.note("fault", kind)

    def _mourn(self, worker: SimWorker) -> None:
        delay, how = self.rng.uniform(0.0, 0.1), self.rng.random()
        if how < 0.3:
            self.world.after(delay, self.coordinator, self.coordinator.lost, worker.node)
        elif how < 0.6:
            intro = worker.core.introduction
            self.network.send("engine", COORDINATOR, Exited(1, intro.name, intro.pid, -9))
        for server in self.servers:
            if self.rng.random() < 0.6:
                self.world.after(self.rng.uniform(0.0, 0.1), server, server.core.forget, worker.node)
        if self.rng.random() < 0.5 or not self._running():
            self.spawn(self.workers.index(worker) % self.scenario.cluster.workers, self.rng.uniform(0.1, 2.0))

    def _inject(self, fault: Fault) -> None:
        running = self._running()
        if not running:
            return
        worker = self.rng.choice(running)
        match fault.kind:
            case "kill":
                worker.kill()
                self._mourn(worker)
            case "pause":
                worker.stopped = True
                self.world.after(fault.lasts_s, self._clock, self.world.wake, worker)
            case "hang":
                worker.stopped = True
            case "cut":
                ends = [COORDINATOR, *(s.node for s in self.servers)]
                for end in ends if self.rng.random() < 0.3 else [self.rng.choice(ends)]:
                    self.network.cut(worker.node, end, fault.lasts_s)
            case "disconnect":
                self.world.after(0.0, self.coordinator, self.coordinator.lost, worker.node)
            case "join":
                self.spawn(len(self.workers), 0.0)
            case "leave":
                worker.leaving = len(running) > 1
            case "pause-coordinator":
                self.coordinator.stopped = True
                self.world.after(fault.lasts_s, self._clock, self.world.wake, self.coordinator)
            case "pause-server":
                server = self.rng.choice(self.servers)
                server.stopped = True
                self.world.after(fault.lasts_s, self._clock, self.world.wake, server)
            case "ghost":
                self._haunt(worker)
        self._count(fault.kind)

    def _haunt(self, worker: SimWorker) -> None:
        """Messages from another life: of an older coordinator, or of an incarnation that is not this one."""
        older = self.scenario.generation - 1
        log = self.checker.log
        server = self.rng.choice(self.servers)
        if server.core.generation:
            self.network.send("ghost", server.node, Abort(older, "failed", "a ghost"))
            if log:
                commit = msgspec.structs.replace(log[-1], version=log[-1].version + 1, step=log[-1].step + 1)
                self.network.send("ghost", server.node, Committed(older, commit))
        if worker.core.generation:
            self.network.send("ghost", worker.node, Abort(older, "failed", "a ghost"))
            fence = getattr(worker.core.task, "fence", None)
            if fence is not None:
                self.network.send("ghost", worker.node, Revoke(older, fence))
        self.network.send(worker.node, server.node, Pull(0, 7, 1, 0))

    def _heal(self) -> None:
        """From here on nothing goes wrong, and at least one worker is there."""
        self.world.note("heal", "all")
        self.faulty = False
        self.network.heal()
        for process in (self.coordinator, *self.servers):
            if process.stopped:
                self.world.wake(process)
        for worker in self._running():
            worker.leaving = False
            if worker.stopped:
                if self.rng.random() < 0.5:
                    self.world.wake(worker)
                else:
                    worker.kill()  # a hung process is put down in the end, and nobody is told
        if not self._running() and not any(w.ended for w in self.workers):
            self.spawn(0, 0.0)
