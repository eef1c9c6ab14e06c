"""The hosts of one simulated job: which process runs where, and what happens to a whole host."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from paceline.coordinator.placement_report import drained_hosts
from paceline.messages import Drain, HostLost
from paceline.sim.fault_kinds import Fault
from paceline.sim.host_names import host_of
from paceline.sim.network import CUTS
from paceline.sim.world import Process
from paceline.types import COORDINATOR, NodeId

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster
    from paceline.sim.worker import SimWorker

_LATER_S = 0.3  # seconds after which a fault that would have been a second loss is tried again
_SLOWER = 6.0  # the factor by which workers of a slow host take longer


class Hosts:
    """Injects the faults of hosts. Random choices come from a generator of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._scenario = cluster.scenario
        self._rng = Random(f"faults of hosts {cluster.scenario.seed}")
        self._clock = Process("hosts")
        self._slow: list[str] = []
        self._names = [f"host-{n}" for n in range(self._scenario.hosts)]

    def of_server(self, index: int) -> str:
        """The host on which server number `index` starts: not one that is being emptied, if there is another."""
        draining = self._cluster.coordinator.core.tables.members.draining_hosts
        numbers = range(index, index + self._scenario.hosts)
        names = [host_of(self._scenario, n) for n in numbers]
        return next((name for name in names if name not in draining), names[0])

    def slowness(self, host: str) -> float:
        """The factor by which turns on `host` take longer now."""
        return _SLOWER if host in self._slow else 1.0

    def start(self) -> None:
        """Begin to look after the hosts as the launcher does: no host stays drained after the faults."""
        if self._scenario.hosts > 1:
            self._cluster.world.after(0.5, self._clock, self._supervise)

    def _supervise(self) -> None:
        cluster = self._cluster
        cluster.world.after(0.5, self._clock, self._supervise)
        if cluster.coordinator.alive and not cluster.faults.on:
            for host in sorted(cluster.coordinator.core.tables.members.draining_hosts):
                self._drain(host, undo=True)

    # ------------------------------------------------------------ faults

    def inject(self, fault: Fault) -> None:
        """Inject a fault of one host. If it may not happen now, because it would be a second loss, try it later."""
        cluster, rng = self._cluster, self._rng
        if fault.kind in ("lose-host", "cut-host") and not cluster.server_pool.may(fault):
            if cluster.faults.on:
                cluster.world.after(_LATER_S, self._clock, self.inject, fault)
            return
        host = rng.choice(self._names)
        match fault.kind:
            case "lose-host":
                self._lose(host)
            case "cut-host":
                self._cut(host, fault.lasts_s)
            case "drain-host":
                self._drain(host)
                cluster.world.after(fault.lasts_s, self._clock, self._end_drain, host)
            case "slow-host":
                self._slow.append(host)
                cluster.world.after(fault.lasts_s, self._clock, self._slow.remove, host)

    def _workers(self, host: str) -> list[SimWorker]:
        return [w for w in self._cluster.running() if w.host == host]

    def _nodes(self, host: str) -> list[NodeId]:
        servers = [s.node for s in self._cluster.servers if s.alive and s.introduction.host == host]
        return [*servers, *(w.node for w in self._workers(host))]

    def _lose(self, host: str) -> None:
        """Kill every process of a host at once. The host returns later: its processes start again."""
        cluster, rng = self._cluster, self._rng
        if not cluster.scenario.cluster.rewinds:
            return
        nodes, back_s = self._nodes(host), rng.choice((0.3, 2.0, 6.0))
        here = [s.introduction for s in cluster.servers if s.alive and s.introduction.host == host]
        roles = tuple((server.name, server.start) for server in here)
        cluster.faults.count("host-killed")
        cluster.server_pool.lose(host, back_s)
        for worker in self._workers(host):
            worker.kill()
            cluster.replace(worker, back_s + rng.uniform(0.1, 2.0))
        how = rng.random()
        if how < 0.4:
            lost = HostLost(rng.randrange(1 << 30), host, "the host is lost", roles)
            cluster.network.send("engine", COORDINATOR, lost)
        elif how < 0.6:
            cluster.world.after(rng.uniform(0.0, 0.1), self._clock, cluster.sessions_lost, nodes)

    def _cut(self, host: str, seconds: float) -> None:
        """Cut the network between a host and all other hosts."""
        cluster, rng = self._cluster, self._rng
        cluster.faults.count("host-cut-off")
        inside = self._nodes(host)
        outside = [COORDINATOR, *(n for other in self._names if other != host for n in self._nodes(other))]
        kind, leaves = rng.choice(CUTS), rng.random() < 0.5
        for a in inside:
            for b in outside:
                cluster.network.cut(*((a, b) if leaves else (b, a)), seconds, kind)

    def _drain(self, host: str, *, undo: bool = False) -> None:
        message = Drain(self._rng.randrange(1 << 30), host, undo)
        self._cluster.network.send("engine", COORDINATOR, message)

    def _end_drain(self, host: str) -> None:
        """Kill the processes of a host that is empty by now, as its owner may do; then use the host again."""
        cluster = self._cluster
        if cluster.coordinator.alive and host in drained_hosts(cluster.coordinator.core.tables):
            cluster.faults.count("drained")
            cluster.server_pool.lose(host, 0.5)
            for worker in self._workers(host):
                worker.kill()
                cluster.replace(worker, 0.5)
        self._drain(host, undo=True)
