"""The faults of one simulated job."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import msgspec

from paceline.messages import Abort, Committed, Exited, Pull, Revoke, SaveNow, SetDials
from paceline.sim.fault_kinds import Fault
from paceline.sim.network import CUTS
from paceline.sim.world import Process
from paceline.types import COORDINATOR, DialChange

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster
    from paceline.sim.worker import SimWorker

_HEALED_DELAY_S = 0.004


class Faults:
    """Injects the faults of the scenario. Random choices come from the cluster's random generator.

    `on` is true until the faults end (see `_heal`); `fired` counts the faults by kind.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.on = cluster.scenario.heal_at_s > 0
        self.fired: dict[str, int] = {}
        self._cluster = cluster
        self._clock = Process("faults")

    def plan(self) -> None:
        """Schedule the faults of the scenario."""
        world, scenario = self._cluster.world, self._cluster.scenario
        for fault in scenario.faults:
            world.after(fault.at_s, self._clock, self._inject, fault)
        world.after(scenario.heal_at_s, self._clock, self._heal)
        for live in scenario.live:
            if live.step < 0:
                world.after(live.at_s, self._clock, self._set, live.change)

    def _set(self, change: DialChange) -> None:
        """Set dials by hand, as `paceline set` does."""
        self.count("set")
        self._cluster.network.send("engine", COORDINATOR, SetDials(1, change, reason="by hand"))

    def count(self, kind: str) -> None:
        """Count a fault."""
        self.fired[kind] = self.fired.get(kind, 0) + 1
        self._cluster.world.note("fault", kind)

    def chance(self, kind: str, probability: float) -> bool:
        """Draw whether a fault of this kind happens now, and count it. Always False after the faults have ended."""
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
                self._notice_death(worker)
            case "pause":
                worker.stop()
                world.after(fault.lasts_s, self._clock, world.wake, worker)
            case "hang":
                worker.stop()
            case "cut":
                if cluster.server_pool.may(fault):  # a cut may evict a server, because workers cannot reach it
                    self._cut(worker, fault.lasts_s)
            case "disconnect":
                world.after(0.0, self._clock, cluster.lost, worker.node)
            case "join":
                cluster.spawn(len(cluster.workers), 0.0)
            case "leave":
                worker.set_leaving(len(running) > 1)
            case "pause-coordinator":
                cluster.coordinator.stop()
                world.after(fault.lasts_s, self._clock, world.wake, cluster.coordinator)
            case "kill-coordinator":
                self._kill_coordinator()
            case "kill-server" | "pause-server" | "cut-server" | "cut-servers" | "scale" | "flip":
                cluster.server_pool.inject(fault)
            case "lose-host" | "cut-host" | "drain-host" | "slow-host":
                cluster.hosts.inject(fault)
            case "damage":
                cluster.disk.damage()
            case "power-cut":
                if cluster.scenario.cluster.rewinds:
                    self._cut_power()
            case "ghost":
                self._send_old_messages(worker)
            case "save":  # as an interrupted launcher does; here the job goes on
                cluster.network.send("engine", COORDINATOR, SaveNow(cluster.rng.randrange(1 << 30)))
        self.count(fault.kind)

    # ------------------------------------------------------------ workers

    def vanish(self, worker: SimWorker) -> None:
        """Kill a worker in the middle of a push."""
        self.count("vanish")
        worker.die()
        self._notice_death(worker)

    def cut_off(self, worker: SimWorker) -> None:
        """End the coordinator's session with a worker about when its report arrives; the worker does not notice."""
        cluster = self._cluster
        self.count("cut-off")
        delay = cluster.rng.uniform(0.0, 3.0) * cluster.scenario.weather.mean_delay_s
        cluster.world.after(delay, self._clock, cluster.lost, worker.node)

    def _notice_death(self, worker: SimWorker) -> None:
        """Decide at random which processes notice the death of `worker`, and whether a replacement starts."""
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
        # The first placement needs the wanted number of members, and the engine always starts them again.
        if rng.random() < 0.5 or not cluster.running() or cluster.scenario.cluster.collective:
            cluster.replace(worker, rng.uniform(0.1, 2.0))

    def _cut(self, worker: SimWorker, seconds: float) -> None:
        """Cut the network between a worker and one other process, or all others."""
        cluster, rng = self._cluster, self._cluster.rng
        ends = [COORDINATOR, *(s.node for s in cluster.servers)]
        for end in ends if rng.random() < 0.3 else [rng.choice(ends)]:
            pair = (worker.node, end) if rng.random() < 0.5 else (end, worker.node)
            cluster.network.cut(*pair, seconds, rng.choice(CUTS))

    # ------------------------------------------------------------ all of it

    def _kill_coordinator(self) -> None:
        """Kill the coordinator; another one starts later."""
        cluster = self._cluster
        if cluster.coordinator.alive:
            cluster.coordinator.die()
            cluster.world.after(cluster.rng.uniform(0.2, 2.0), self._clock, cluster.restart_coordinator)

    def _cut_power(self) -> None:
        """Kill every process at once; each is started again."""
        cluster = self._cluster
        for worker in cluster.running():
            worker.kill()
            cluster.replace(worker, cluster.rng.uniform(0.2, 2.0))
        cluster.server_pool.cut_power()
        self._kill_coordinator()

    def _send_old_messages(self, worker: SimWorker) -> None:
        """Send messages of an older generation or of another incarnation, which must be refused."""
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
        """End all faults, and make sure that at least one worker runs."""
        cluster, world = self._cluster, self._cluster.world
        world.note("heal", "all")
        self.on = False
        cluster.network.heal(_HEALED_DELAY_S if cluster.scenario.hurries else inf)
        for process in (cluster.coordinator, *cluster.servers):
            if process.stopped:
                world.wake(process)
        for worker in cluster.running():
            worker.set_leaving(False)
            if worker.stopped:
                if cluster.rng.random() < 0.5:
                    world.wake(worker)
                else:
                    worker.kill()  # the engine kills a process that hangs for long; no other process gets a message
                    if cluster.scenario.cluster.collective:
                        cluster.replace(worker, cluster.rng.uniform(0.1, 2.0))
        if not cluster.running() and not any(w.ended for w in cluster.workers):
            cluster.spawn(0, 0.0)
