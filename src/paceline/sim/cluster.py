"""All processes of one simulated job."""

from __future__ import annotations

from random import Random

from paceline.sim.disk import Disk
from paceline.sim.faults import Faults
from paceline.sim.fleet import SimServers
from paceline.sim.log_checks import LogChecks
from paceline.sim.network import Network
from paceline.sim.record import Record
from paceline.sim.roles import SimCoordinator, SimServer
from paceline.sim.scenario import Scenario
from paceline.sim.server_checks import ServerChecks
from paceline.sim.worker import SimWorker
from paceline.sim.worker_checks import WorkerChecks
from paceline.sim.world import Trace, World
from paceline.types import NodeId


class Cluster:
    """One job from its first process to its last."""

    def __init__(self, scenario: Scenario, trace: Trace | None) -> None:
        self.scenario = scenario
        self.world = World(trace)
        self.record = Record()
        self.log_checks = LogChecks(self.record, scenario)
        self.worker_checks = WorkerChecks(self.record)
        self.server_checks = ServerChecks(self.record, self.log_checks, self.worker_checks, scenario.cluster.held)
        self.disk = Disk()
        self.network = Network(self.world, scenario.weather, Random(f"network {scenario.seed}"))
        self.rng = Random(f"faults {scenario.seed}")
        self.generation = scenario.generation
        self.restarted_at = 0.0
        self.coordinator = SimCoordinator(self, self.generation)
        self.workers: list[SimWorker] = []
        self.starts = 0
        self.saves = 0
        self.stopped = False
        self.faults = Faults(self)
        self.fleet = SimServers(self, lambda name, node: SimServer(self, name, node))

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
        self.faults.plan()
        self.fleet.start()

    def restart_coordinator(self) -> None:
        """Another one takes over, unless there is one; those who are connected notice, or do not."""
        if self.coordinator.alive:
            return
        self.generation += 1
        self.log_checks.restarted()
        self.restarted_at = self.world.now
        self.coordinator = SimCoordinator(self, self.generation)
        self.network.add(self.coordinator)
        self.coordinator.start()
        roles: list[SimServer | SimWorker] = [*self.servers, *self.workers]
        for role in roles:
            if role.alive and self.rng.random() < 0.8:
                self.world.after(self.rng.uniform(0.0, 0.8), role, role.notice)

    def lost(self, node: NodeId) -> None:
        """The coordinator's session with `node` ends: a worker is not waited for, although it may not hear of that."""
        if self.coordinator.alive:
            for worker in self.workers:
                worker.evicted |= worker.node == node
            self.coordinator.lost(node)

    # ------------------------------------------------------------ workers

    def running(self) -> list[SimWorker]:
        """Those whose script has not ended."""
        return [w for w in self.workers if w.alive and not w.done]

    def spawn(self, index: int, delay: float) -> SimWorker:
        """A new worker process in place `index`."""
        self.starts += 1
        node = f"worker-{index}/{self.starts}"
        speed = self.scenario.speeds[index % len(self.scenario.speeds)]
        rng = Random(f"worker {self.scenario.seed} {self.starts}")
        worker = SimWorker(self, f"worker-{index}", node, speed, rng)
        self.workers.append(worker)
        self.network.add(worker)
        self.world.after(delay, worker, worker.start)
        return worker

    def replace(self, worker: SimWorker, delay: float) -> None:
        """The engine starts another one in the place of `worker`."""
        self.spawn(self.workers.index(worker) % self.scenario.cluster.workers, delay)

    def again(self, worker: SimWorker) -> None:
        """The job went back to before where a worker's script is: the engine starts it again."""
        self.faults.count("again")
        worker.done = True
        self.replace(worker, self.rng.uniform(0.1, 1.0))

    def stops(self, step: int) -> bool:
        """Whether the worker that has `step` in hand is the one to stop the job; True once."""
        plan = self.scenario.stop
        if plan is None or self.stopped or step < plan.step:
            return False
        self.stopped = True
        return True

    def goodbye(self, worker: SimWorker) -> None:
        """A script has ended. When it left in the middle and was the last, somebody comes after it."""
        if not worker.ended and not self.running():
            self.spawn(0, 0.1)

    def is_complete(self) -> bool:
        """Whether the job has done all that its scripts asked for."""
        core = self.coordinator.core
        if core.rewinding or not self.coordinator.alive or core.phases.open is not None:
            return False
        return core.state == "finished" or len(core.phases.phases) == len(self.scenario.phases)
