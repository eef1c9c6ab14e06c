"""All processes of one simulated job, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from paceline.core.coordinator import CoordinatorCore
from paceline.core.effects import Complete, Effect, Send, Write
from paceline.core.keeping import folder_name
from paceline.core.membership import RunningTime
from paceline.core.server import ServerCore
from paceline.messages import (
    Abort,
    BeatAck,
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
from paceline.sim.disk import Disk
from paceline.sim.fleet import Fleet
from paceline.sim.network import Network
from paceline.sim.scenario import Fault, Scenario
from paceline.sim.symbols import SymbolStore
from paceline.sim.worker import SimWorker
from paceline.sim.world import Node, Process, Trace, World
from paceline.types import COORDINATOR, Commit, NodeId


class SimCoordinator(Node):
    """A start of the coordinator process; what it writes is on the cluster's disk."""

    def __init__(self, cluster: Cluster, generation: int) -> None:
        super().__init__(COORDINATOR)
        self.cluster = cluster
        disk = cluster.disk
        self.core = CoordinatorCore(cluster.scenario.cluster, generation, disk.history(), disk.checkpoints())
        self.timer: Callable[[], float] | None = None
        self.spent_s = 0.0
        self._running = RunningTime()
        self._members = 0

    def start(self) -> None:
        """The process begins."""
        self._carry_out(self.core.start(self._running.advance(self.cluster.world.now)))
        self._tick()

    def _complete(self, effect: Complete) -> None:
        """The manifest and the marker take a while; a coordinator that dies before that leaves none."""
        cluster = self.cluster
        problem = "disk full" if cluster.chance("full", cluster.scenario.habits.disk_full) else ""
        if not problem:
            cluster.disk.complete(effect.checkpoint, effect.chains, effect.drop)
        now = self._running.advance(cluster.world.now)
        self._carry_out(self.core.completed(effect.checkpoint.folder, problem, now))

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
                self.cluster.disk.write(effect)
                if isinstance(effect.row, Commit):
                    self.cluster.fleet.check_commit(effect.row)
            elif isinstance(effect, Complete):
                checker.completed(effect)
                self.cluster.world.after(self.cluster.rng.uniform(0.0, 0.3), self, self._complete, effect)
            else:
                checker.sends(effect)
                self.cluster.network.send(COORDINATOR, effect.to, effect.message)


class SimServer(Node):
    """A parameter server process."""

    def __init__(self, cluster: Cluster, name: str, node: NodeId) -> None:
        super().__init__(node)
        self.cluster = cluster
        self.introduction = Register(1, "server", name, 1, "here", f"sim://{node}")
        scenario = cluster.scenario
        self.core = ServerCore(
            node,
            lambda: SymbolStore(cluster.checker, cluster.disk, node),
            heartbeat_s=scenario.cluster.heartbeat_s,
            part_nbytes=scenario.part_nbytes,
            reach_s=scenario.cluster.reach_s,
        )
        self.retired = False
        self._welcome = False

    @property
    def store(self) -> SymbolStore:
        """The blocks that it is the primary of."""
        assert isinstance(self.core.store, SymbolStore)
        return self.core.store

    def stores(self, what: str) -> list[object]:
        """What is in all its stores: `sums` or `kept` versions."""
        copies = self.core.copies
        groups = (self.core.own, *copies.followers.values(), *copies.joiners.values())
        return [found for group in groups for found in getattr(group.store, what)]

    def start(self) -> None:
        """The process begins."""
        self._register()
        self._tick()

    def _register(self) -> None:
        if not self._welcome:
            self._send([Send(COORDINATOR, self.introduction)])
            self.cluster.world.after(0.5, self, self._register)

    def notice(self) -> None:
        """There is another coordinator."""
        if self._welcome:
            self._send([Send(COORDINATOR, self.core.introduce(self.introduction))])

    def _save(self) -> None:
        """Write what is frozen; whoever dies before that leaves nothing."""
        if self.store.frozen is None:
            return
        (version, values), self.store.frozen = self.store.frozen, None
        problem = "disk full" if self.cluster.chance("full", self.cluster.scenario.habits.disk_full) else ""
        if not problem and version == self.core.saving:
            self.cluster.disk.put(folder_name(self.core.incarnation, version), values)
        self._send(self.core.saved(version, (), problem))

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """One message."""
        if isinstance(message, Welcome):
            self._welcome = True
        if isinstance(message, BeatAck) and not message.known:
            self.notice()
        before = self.store.frozen
        self._send(self.core.handle(sender, message, payload, self.cluster.world.now))
        if isinstance(message, Push):
            self.cluster.checker.held(self.core, message.step)
        if self.store.frozen is not before and self.store.frozen is not None:
            self.cluster.world.after(self.cluster.rng.uniform(0.0, 0.5), self, self._save)

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
        self.disk = Disk()
        self.network = Network(self.world, scenario.weather, Random(f"network {scenario.seed}"))
        self.rng = Random(f"faults {scenario.seed}")
        self.generation = scenario.generation
        self.restarted_at = 0.0
        self.coordinator = SimCoordinator(self, self.generation)
        self.workers: list[SimWorker] = []
        self.pids = 0
        self.faulty = scenario.heal_at_s > 0
        self.fired: dict[str, int] = {}
        self.saves = 0
        self.stopped = False
        self.finished_workers = 0
        self._clock = Process("faults")
        self.fleet = Fleet(self, lambda name, node: SimServer(self, name, node))

    @property
    def servers(self) -> list[SimServer]:
        """One for each place, dead or alive."""
        return self.fleet.servers

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
        self.fleet.start()

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

    def chance(self, kind: str, probability: float) -> bool:
        """Whether something goes wrong now, while things do."""
        if not self.faulty or not probability or self.rng.random() >= probability:
            return False
        self._count(kind)
        return True

    def again(self, worker: SimWorker) -> None:
        """The job went back to before where a worker's script is: the engine starts it again."""
        self._count("again")
        worker.done = True
        self.spawn(self.workers.index(worker) % self.scenario.cluster.workers, self.rng.uniform(0.1, 1.0))

    def is_complete(self) -> bool:
        """Whether the job has done all that its scripts asked for."""
        core = self.coordinator.core
        if core.rewinding or not self.coordinator.alive or core.phases.open is not None:
            return False
        return core.state == "finished" or len(core.phases.phases) == len(self.scenario.phases)

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
        self.world.after(delay, self._clock, self.lost, worker.node)

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
            self.world.after(delay, self._clock, self.lost, worker.node)
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
                    pair = (worker.node, end) if self.rng.random() < 0.5 else (end, worker.node)
                    self.network.cut(*pair, fault.lasts_s, self.rng.choice(("symmetric", "one-way", "flapping")))
            case "disconnect":
                self.world.after(0.0, self._clock, self.lost, worker.node)
            case "join":
                self.spawn(len(self.workers), 0.0)
            case "leave":
                worker.leaving = len(running) > 1
            case "pause-coordinator":
                self.coordinator.stopped = True
                self.world.after(fault.lasts_s, self._clock, self.world.wake, self.coordinator)
            case "kill-coordinator":
                self._kill_coordinator()
            case "kill-server" | "pause-server" | "cut-server" | "cut-servers" | "scale":
                self.fleet.inject(fault)
            case "damage":
                whole = [f for f in self.disk.folders.values() if f.checkpoint is not None]
                if whole:
                    whole[-1].damaged = True
            case "power-cut":
                if self.scenario.cluster.rewinds:
                    self._cut_power()
            case "ghost":
                self._haunt(worker)
        self._count(fault.kind)

    def _kill_coordinator(self) -> None:
        """It dies without a word; another one takes over, and those who are connected notice, or do not."""
        if not self.coordinator.alive:
            return
        self.coordinator.alive = False
        self.world.after(self.rng.uniform(0.2, 2.0), self._clock, self._start_coordinator)

    def _start_coordinator(self) -> None:
        if self.coordinator.alive:
            return
        self.generation += 1
        self.checker.restarted()
        self.restarted_at = self.world.now
        self.coordinator = SimCoordinator(self, self.generation)
        self.network.add(self.coordinator)
        self.coordinator.start()
        roles: list[SimServer | SimWorker] = [*self.servers, *self.workers]
        for role in roles:
            if role.alive and self.rng.random() < 0.8:
                self.world.after(self.rng.uniform(0.0, 0.8), role, role.notice)

    def lost(self, node: NodeId) -> None:
        """The coordinator's session with `node` ends."""
        if self.coordinator.alive:
            self.coordinator.lost(node)

    def _cut_power(self) -> None:
        """Everything dies at once, and is started again."""
        for worker in self._running():
            worker.kill()
            self.spawn(self.workers.index(worker) % self.scenario.cluster.workers, self.rng.uniform(0.2, 2.0))
        self.fleet.cut_power()
        self._kill_coordinator()

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
