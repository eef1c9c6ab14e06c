"""What goes wrong in one simulated job, and when it all ends."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from paceline.messages import Abort, Committed, Exited, Pull, Revoke
from paceline.sim.network import CUTS
from paceline.sim.scenario import Fault
from paceline.sim.world import Process
from paceline.types import COORDINATOR

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster
    from paceline.sim.worker import SimWorker

_HEALED_DELAY_S = 0.004


class Faults:
    """Carries out what the scenario plans. What is left to chance comes from the cluster's random numbers.

    `on` until the world heals; `fired` counts what happened, by kind.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.on = cluster.scenario.heal_at_s > 0
        self.fired: dict[str, int] = {}
        self._cluster = cluster
        self._clock = Process("faults")

    def plan(self) -> None:
        """The job begins."""
        world, scenario = self._cluster.world, self._cluster.scenario
        for fault in scenario.faults:
            world.after(fault.at_s, self._clock, self._inject, fault)
        world.after(scenario.heal_at_s, self._clock, self._heal)

    def count(self, kind: str) -> None:
        """Something went wrong."""
        self.fired[kind] = self.fired.get(kind, 0) + 1
        self._cluster.world.note("fault", kind)

    def chance(self, kind: str, probability: float) -> bool:
        """Whether something goes wrong now, while things do."""
        if not self.on or not probability or self._cluster.rng.random() >= probability:
            return False
        self.count(kind)
        return True

    def _inject(self, fault: Fault) -> None:
        cluster, world = self._cluster, self._cluster.world
        running = cluster.running()
        if not running:
            return
        worker = cluster.rng.choice(running)
        match fault.kind:
            case "kill":
                worker.kill()
                self._mourn(worker)
            case "pause":
                worker.stopped = True
                world.after(fault.lasts_s, self._clock, world.wake, worker)
            case "hang":
                worker.stopped = True
            case "cut":
                if cluster.fleet.may(fault):  # a server that its workers cannot reach is taken for lost
                    self._cut(worker, fault.lasts_s)
            case "disconnect":
                world.after(0.0, self._clock, cluster.lost, worker.node)
            case "join":
                cluster.spawn(len(cluster.workers), 0.0)
            case "leave":
                worker.leaving = len(running) > 1
            case "pause-coordinator":
                cluster.coordinator.stopped = True
                world.after(fault.lasts_s, self._clock, world.wake, cluster.coordinator)
            case "kill-coordinator":
                self._kill_coordinator()
            case "kill-server" | "pause-server" | "cut-server" | "cut-servers" | "scale":
                cluster.fleet.inject(fault)
            case "damage":
                cluster.disk.damage()
            case "power-cut":
                if cluster.scenario.cluster.rewinds:
                    self._cut_power()
            case "ghost":
                self._haunt(worker)
        self.count(fault.kind)

    # ------------------------------------------------------------ workers

    def vanish(self, worker: SimWorker) -> None:
        """A worker dies; whether and when the others notice, and whether it is replaced, is chance."""
        self.count("vanish")
        worker.alive = False
        self._mourn(worker)

    def cut_off(self, worker: SimWorker) -> None:
        """The coordinator's session with a worker ends about when its report arrives; the worker does not know."""
        cluster = self._cluster
        self.count("cut-off")
        delay = cluster.rng.uniform(0.0, 3.0) * cluster.scenario.weather.mean_delay_s
        cluster.world.after(delay, self._clock, cluster.lost, worker.node)

    def _mourn(self, worker: SimWorker) -> None:
        cluster, rng = self._cluster, self._cluster.rng
        delay, how = rng.uniform(0.0, 0.1), rng.random()
        if how < 0.3:
            cluster.world.after(delay, self._clock, cluster.lost, worker.node)
        elif how < 0.6:
            intro = worker.core.registration.introduction
            cluster.network.send("engine", COORDINATOR, Exited(1, intro.name, intro.start, -9))
        for server in cluster.servers:
            if rng.random() < 0.6:
                cluster.world.after(rng.uniform(0.0, 0.1), server, server.core.forget, worker.node)
        if rng.random() < 0.5 or not cluster.running():
            cluster.replace(worker, rng.uniform(0.1, 2.0))

    def _cut(self, worker: SimWorker, seconds: float) -> None:
        """Between a worker and one other, or all of them."""
        cluster, rng = self._cluster, self._cluster.rng
        ends = [COORDINATOR, *(s.node for s in cluster.servers)]
        for end in ends if rng.random() < 0.3 else [rng.choice(ends)]:
            pair = (worker.node, end) if rng.random() < 0.5 else (end, worker.node)
            cluster.network.cut(*pair, seconds, rng.choice(CUTS))

    # ------------------------------------------------------------ all of it

    def _kill_coordinator(self) -> None:
        """It dies without a word; another one takes over, and those who are connected notice, or do not."""
        cluster = self._cluster
        if cluster.coordinator.alive:
            cluster.coordinator.alive = False
            cluster.world.after(cluster.rng.uniform(0.2, 2.0), self._clock, cluster.restart_coordinator)

    def _cut_power(self) -> None:
        """Everything dies at once, and is started again."""
        cluster = self._cluster
        for worker in cluster.running():
            worker.kill()
            cluster.replace(worker, cluster.rng.uniform(0.2, 2.0))
        cluster.fleet.cut_power()
        self._kill_coordinator()

    def _haunt(self, worker: SimWorker) -> None:
        """Messages from another life: of an older coordinator, or of an incarnation that is not this one."""
        cluster, send = self._cluster, self._cluster.network.send
        older = cluster.scenario.generation - 1
        log = cluster.record.log
        server = cluster.rng.choice(cluster.servers)
        if server.core.assignment.generation:
            send("ghost", server.node, Abort(older, "failed", "a ghost"))
            if log:
                commit = msgspec.structs.replace(log[-1], version=log[-1].version + 1, step=log[-1].step + 1)
                send("ghost", server.node, Committed(older, server.core.assignment.epoch, commit))
        if worker.core.registration.generation:
            send("ghost", worker.node, Abort(older, "failed", "a ghost"))
            fence = getattr(worker.core.task, "fence", None)
            if fence is not None:
                send("ghost", worker.node, Revoke(older, fence))
        send(worker.node, server.node, Pull(0, 7, 1, 0))

    def _heal(self) -> None:
        """From here on nothing goes wrong, and at least one worker is there."""
        cluster, world = self._cluster, self._cluster.world
        world.note("heal", "all")
        self.on = False
        cluster.network.heal(_HEALED_DELAY_S if cluster.scenario.hurries else inf)
        for process in (cluster.coordinator, *cluster.servers):
            if process.stopped:
                world.wake(process)
        for worker in cluster.running():
            worker.leaving = False
            if worker.stopped:
                if cluster.rng.random() < 0.5:
                    world.wake(worker)
                else:
                    worker.kill()  # a hung process is put down in the end, and nobody is told
        if not cluster.running() and not any(w.ended for w in cluster.workers):
            cluster.spawn(0, 0.0)
