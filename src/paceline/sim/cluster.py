"""All processes of one simulated job."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from paceline.sim.disk import Disk
from paceline.sim.faults import Faults
from paceline.sim.groups import Collective, SimMember
from paceline.sim.host_names import host_of
from paceline.sim.hosts import Hosts
from paceline.sim.log_checks import LogChecks
from paceline.sim.network import Network
from paceline.sim.record import Record
from paceline.sim.roles import SimCoordinator, SimServer
from paceline.sim.scenario import Scenario
from paceline.sim.server_checks import ServerChecks
from paceline.sim.server_pool import ServerPool
from paceline.sim.worker import SimWorker
from paceline.sim.worker_checks import WorkerChecks
from paceline.sim.world import Trace, World
from paceline.types import NodeId, name_of


class Cluster:
    """One job: its processes, its network, its disk and its checks."""

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
        self.collective = Collective(self)
        self.hosts = Hosts(self)
        self.server_pool = ServerPool(
            self,
            lambda index, node: SimServer(self, f"server-{index}", node, self.hosts.of_server(index)),
            lambda name, node, host: SimMember(self, name, node, host),
        )

    @property
    def servers(self) -> list[SimServer]:
        """The newest server process of each name, dead or alive."""
        return self.server_pool.servers

    def start(self) -> None:
        """Start every role, in a random order, and schedule the faults."""
        roles: list[SimCoordinator | SimServer] = [self.coordinator, *self.servers]
        for role in roles:
            self.network.add(role)
            self.world.after(self.rng.uniform(0.0, 0.3), role, role.start)
        for index in range(self.scenario.cluster.workers):
            self.spawn(index, self.rng.uniform(0.0, 0.3))
        self.faults.plan()
        self.server_pool.start()
        self.hosts.start()

    def restart_coordinator(self) -> None:
        """Start another coordinator if none is alive. Other processes notice it after a random time, or not at all."""
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
        """End the coordinator's session with `node`, which need not notice. A worker is evicted by this."""
        if self.coordinator.alive:
            for worker in self.workers:
                if worker.node == node:
                    worker.set_evicted(True)
            self.coordinator.lost(node)

    def sessions_lost(self, nodes: Sequence[NodeId]) -> None:
        """End the coordinator's sessions with all of `nodes`."""
        if self.coordinator.alive:
            self.coordinator.sessions_lost(nodes)

    # ------------------------------------------------------------ workers

    def running(self) -> list[SimWorker]:
        """The living workers whose script has not ended."""
        return [w for w in self.workers if w.alive and not w.done]

    def spawn(self, index: int, delay: float) -> SimWorker:
        """Start a worker process with the name `worker-INDEX`."""
        node = f"worker-{index}/{self.next_start()}"
        speed = self.scenario.speeds[index % len(self.scenario.speeds)]
        rng = Random(f"worker {self.scenario.seed} {self.starts}")
        worker = SimWorker(self, f"worker-{index}", node, speed, rng, host_of(self.scenario, index))
        self.workers.append(worker)
        self.network.add(worker)
        self.world.after(delay, worker, worker.start)
        return worker

    def replace(self, worker: SimWorker, delay: float) -> None:
        """Start a new process with the name of `worker` after `delay`, as the engine does."""
        self.spawn(self.workers.index(worker) % self.scenario.cluster.workers, delay)

    def start_again(self, worker: SimWorker) -> None:
        """Start a worker again because its script is ahead of the rewound job, as the engine does."""
        self.faults.count("again")
        self.replace(worker, self.rng.uniform(0.1, 1.0))

    def has_later_start(self, worker: SimWorker) -> bool:
        """Whether another worker with the name of `worker` was started after it: the coordinator ends `worker` then."""
        later = self.workers[self.workers.index(worker) + 1 :]
        return any(name_of(other.node) == name_of(worker.node) for other in later)

    def next_start(self) -> int:
        """The number of the next start of a process; each call returns a new number."""
        self.starts += 1
        return self.starts

    def saved(self) -> None:
        """Count that a worker saved the model."""
        self.saves += 1

    def stops(self, step: int) -> bool:
        """Whether a worker with a slot of `step` must stop the job now. True only once, as the scenario plans it."""
        plan = self.scenario.stop
        if plan is None or self.stopped or step < plan.step:
            return False
        self.stopped = True
        return True

    def script_ended(self, worker: SimWorker) -> None:
        """Handle the end of a worker's script: if the last worker left in the middle of the job, start another one."""
        if not worker.ended and not self.running():
            self.spawn_another()

    def spawn_another(self) -> None:
        """Start a script because no script runs. A process whose member is still needed keeps its name."""
        self.spawn(len(self.workers) if self.scenario.cluster.collective else 0, 0.1)

    def is_complete(self) -> bool:
        """Whether the job has run all phases of its scripts."""
        core = self.coordinator.core
        if core.machines.rewind.is_rewinding or not self.coordinator.alive or core.tables.phases.open is not None:
            return False
        return core.state == "finished" or len(core.tables.phases.phases) == len(self.scenario.phases)
