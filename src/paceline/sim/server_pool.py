"""The servers of one simulated job: kills, restarts, cuts, adds and drains."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from paceline.core.server.backups import Backup
from paceline.messages import Exited, Scale
from paceline.sim.fault_kinds import Fault
from paceline.sim.network import CUTS
from paceline.sim.symbols import SymbolStore
from paceline.sim.world import Process, Violation
from paceline.types import COORDINATOR, Commit, NodeId, Placement, is_member

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster
    from paceline.sim.roles import SimServer

_LATER_S = 0.3  # seconds after which a fault that would have been a second loss is tried again

_BEATS = 2.5  # heartbeats: the coordinator may soon evict a server that was silent for longer


class ServerPool:
    """Servers by their index, and members of workers. A restarted server keeps its name."""

    def __init__(
        self,
        cluster: Cluster,
        make: Callable[[int, NodeId], SimServer],
        make_member: Callable[[str, NodeId, str], SimServer],
    ) -> None:
        self._cluster = cluster
        self._make = make
        self._make_member = make_member
        self._rng = Random(f"servers {cluster.scenario.seed}")
        self._clock = Process("fleet")
        self._trouble_until = 0.0
        self._wanted = cluster.scenario.cluster.servers
        self._own = [make(i, f"server-{i}") for i in range(self._wanted)]
        self._members: list[SimServer] = []

    @property
    def servers(self) -> list[SimServer]:
        """The newest process of each server, then all members, dead or alive."""
        return [*self._own, *self._members]

    def start(self) -> None:
        """Begin to supervise the servers as the launcher does: start wanted servers and end drained ones."""
        if self._wanted:
            self._cluster.world.after(0.5, self._clock, self._supervise)

    def add_member(self, name: str, node: NodeId, host: str) -> SimServer:
        """Make the member of a worker that starts."""
        member = self._make_member(name, node, host)
        self._cluster.network.add(member)
        self._members.append(member)
        return member

    def find(self, node: NodeId) -> SimServer | None:
        """The process `node`, if it is alive."""
        return next((s for s in self.servers if s.node == node and s.alive), None)

    # ------------------------------------------------------------ faults

    def inject(self, fault: Fault) -> None:
        """Inject a fault of servers. If it may not happen now, because it would be a second loss, try it later."""
        if fault.kind == "scale":
            self._scale()
            return
        if fault.kind == "flip":
            self._flip(fault)
            return
        if not self.may(fault):
            if self._cluster.faults.on:
                self._cluster.world.after(_LATER_S, self._clock, self.inject, fault)
            return
        cluster, rng = self._cluster, self._rng
        if fault.kind == "kill-server":
            if cluster.scenario.cluster.rewinds:
                self.kill(rng.randrange(len(self._own)))
            return
        server = rng.choice(self._own)
        match fault.kind:
            case "pause-server":
                server.stop()
                cluster.world.after(fault.lasts_s, self._clock, cluster.world.wake, server)
            case "cut-server":
                ends = [COORDINATOR, server.node]
                rng.shuffle(ends)
                cluster.network.cut(ends[0], ends[1], fault.lasts_s, rng.choice(CUTS))
            case "cut-servers":
                other = rng.choice(self._own)
                if other is not server:
                    cluster.network.cut(server.node, other.node, fault.lasts_s, rng.choice(CUTS))

    def _flip(self, fault: Fault) -> None:
        """Flip a bit in a copy of a block, later if there is no copy now."""
        cluster, rng = self._cluster, self._rng
        stores = [
            group.store
            for server in self.servers
            for group in server.core.backups.synced_groups
            if group.blocks and server.core.versions.applied > 0
        ]
        if not stores:
            if cluster.faults.on:
                cluster.world.after(_LATER_S, self._clock, self._flip, fault)
            return
        store = rng.choice(stores)
        assert isinstance(store, SymbolStore)
        cluster.log_checks.flip(store.node)
        store.flip(rng.choice(sorted(store.blocks)))

    def may(self, fault: Fault) -> bool:
        """Whether the fault may happen now. In a careful scenario, every block must have all its copies first."""
        cluster = self._cluster
        if not cluster.scenario.careful or fault.kind == "cut-servers":
            return True
        now = cluster.world.now
        if now < self._trouble_until or not self.is_redundant() or not cluster.faults.on:
            return False
        if fault.kind in ("lose-host", "cut-host") and not self._spans_hosts():
            return False
        self._trouble_until = now + fault.lasts_s + 1.0
        return True

    def is_redundant(self) -> bool:
        """Whether every block has all its copies on running servers whose heartbeats reach the coordinator.

        False if a server cannot reach another: one of the two may soon be evicted, so a fault would be a second loss.
        """
        placement, cluster = self._placement(), self._cluster
        if placement is None or cluster.coordinator.core.tables.incarnation.awaited or placement.joining:
            return False
        core = cluster.coordinator.core
        heard = {
            m.node
            for m in core.tables.members.by_role("server")
            if core.tables.clock.now - m.seen < _BEATS * core.spec.heartbeat_s
        }
        healthy = {s.node for s in self.servers if s.alive and not s.stopped} & heard
        if any(heard.issuperset(pair) for pair in core.machines.reachability.cuts):
            return False
        copies = [placement.copies(b) for b in range(len(placement.owners))]
        replicas = cluster.scenario.cluster.replicas
        hosts = {s.node: s.introduction.host for s in self.servers if s.node in healthy}
        span = min(replicas + 1, len({hosts[node] for node in hosts if node not in core.tables.members.draining}))
        return all(
            len(members) > replicas
            and healthy.issuperset(members)
            and (len({hosts[m] for m in members}) >= span or cluster.scenario.hosts < 2)
            for members in copies
        )

    def _spans_hosts(self) -> bool:
        """Whether every block has copies on two hosts that stay, so that no loss of one host loses a block.

        Copies on a draining host do not count: they may be dropped in the moment in which another host is lost.
        """
        draining = self._cluster.coordinator.core.tables.members.draining_hosts
        placement = self._placement()
        hosts = {s.node: s.introduction.host for s in self.servers if s.introduction.host not in draining}
        assert placement is not None
        return all(len({hosts[m] for m in placement.copies(b) if m in hosts}) > 1 for b in range(len(placement.owners)))

    def _placement(self) -> Placement | None:
        cluster = self._cluster
        return cluster.coordinator.core.placement if cluster.coordinator.alive else None

    def kill(self, index: int) -> None:
        """Kill a server, whose blocks are lost; a new process with its name starts later."""
        cluster, rng, old = self._cluster, self._rng, self._own[index]
        if not old.alive:
            return
        old.die()
        how = rng.random()
        if how < 0.3:
            cluster.world.after(rng.uniform(0.0, 0.1), self._clock, cluster.lost, old.node)
        elif how < 0.6:
            cluster.network.send("engine", COORDINATOR, Exited(1, old.introduction.name, old.introduction.start, -9))
        cluster.world.after(rng.uniform(0.2, 2.0), self._clock, self.revive, index)

    def lose(self, host: str, back_s: float) -> None:
        """Kill all servers of a host, which returns after `back_s`; then each is started again."""
        for index, server in enumerate(self._own):
            if server.alive and server.introduction.host == host:
                server.die()
                self._cluster.world.after(back_s + self._rng.uniform(0.0, 1.0), self._clock, self.revive, index)

    def cut_power(self) -> None:
        """Kill all servers; each is started again. Members die with their workers, whose scripts may have ended."""
        if self._members:
            for worker in self._cluster.workers:
                if worker.done:
                    worker.die()
        for index, server in enumerate(self._own):
            server.die()
            self._cluster.world.after(self._rng.uniform(0.2, 2.0), self._clock, self.revive, index)

    def revive(self, index: int) -> None:
        """Start a server with that index, if it is still wanted."""
        old = self._own[index]
        if old.alive:
            return
        if index >= self._wanted:
            old.retire()
            return
        name = old.introduction.name
        self._own[index] = server = self._make(index, f"{name}/{self._cluster.next_start()}")
        self._cluster.network.add(server)
        server.start()

    # ------------------------------------------------------------ more or fewer

    def _scale(self) -> None:
        replicas = self._cluster.scenario.cluster.replicas
        number = self._rng.randint(replicas + 1, max(replicas + 2, self._wanted + 1))
        self._cluster.network.send("engine", COORDINATOR, Scale(self._rng.randrange(1 << 30), 0, number))

    def _supervise(self) -> None:
        """Start servers that are wanted, and end drained servers that hold no blocks, as the launcher does."""
        cluster = self._cluster
        cluster.world.after(0.5, self._clock, self._supervise)
        if not cluster.coordinator.alive:
            return
        core = cluster.coordinator.core
        self._wanted = core.tables.members.wanted_servers
        for index in range(self._wanted):
            if index >= len(self._own):
                self._own.append(self._make(index, f"server-{index}/new{cluster.starts}"))
                cluster.network.add(self._own[index])
                self._own[index].start()
            elif not self._own[index].alive and self._own[index].retired:
                self.revive(index)
        if core.placement is None or core.tables.incarnation.awaited:
            return
        draining = core.tables.members.draining
        for server in self._own:
            if server.alive and server.node in draining and server.node not in core.tables.placed.holders:
                server.retire()
                exited = Exited(1, server.introduction.name, server.introduction.start, 0)
                cluster.network.send("engine", COORDINATOR, exited)

    # ------------------------------------------------------------ what must hold

    def check_commit(self, commit: Commit) -> None:
        """Check a commit that is written: every living server with an in-sync copy of a block must have the sum."""
        placement = (
            self._cluster.record.placement
        )  # the placement in the log, because the core may already have the next one
        assert placement is not None
        groups: dict[tuple[NodeId, NodeId], set[int]] = {}
        for block in range(len(placement.owners)):
            for node in placement.copies(block):
                groups.setdefault((node, placement.owners[block]), set()).add(block)
        for (node, primary), blocks in groups.items():
            server = self.find(node)
            if server is None:
                continue
            if server.core.assignment.at != (commit.incarnation, placement.epoch):
                raise Violation(
                    f"version {commit.version} is committed, but {node} is not in placement {placement.epoch}"
                )
            if node == primary or node in placement.group:
                if any(s.step == commit.step for s in server.store.terms):
                    continue
                raise Violation(f"version {commit.version} is committed without its primary {node}")
            synced, joining = server.core.backups.synced.get(primary), server.core.backups.joining.get(primary)
            found: list[Backup] = [b for b in (synced, None if joining is None else joining.backup) if b is not None]
            having = {b for backup in found if commit.step in backup.sums for b in backup.group.blocks}
            if not blocks <= having:
                raise Violation(f"version {commit.version} is committed, but {node} has no copy of it from {primary}")

    def check_end(self, last: int) -> None:
        """Check that every server has the last version and the right hash chains, and keeps nothing else."""
        placement, record = self._placement(), self._cluster.record
        for server in self.servers:
            has_ended = is_member(server.node) and not server.alive  # a later start has taken its place
            if server.core.failed is not None and not has_ended:
                raise Violation(f"{server.node} believes that the job failed: {server.core.failed.reason}")
            if placement is None or not server.alive or server.node not in placement.holders:
                continue
            core = server.core
            if core.versions.applied != last:
                raise Violation(f"{server.node} ends at version {core.versions.applied} of {last}")
            if core.attempts.steps or server.stores("terms"):
                raise Violation(f"{server.node} still holds {list(core.attempts.steps)}, {server.stores('terms')}")
            if set(server.stores("kept")) - {last}:  # the last version may stay readable
                raise Violation(f"{server.node} still keeps versions {server.stores('kept')}")
            for group in (core.own, *core.backups.synced_groups):
                for block, chain in group.chains.items():
                    if chain != record.chain(block, last, record.incarnation):
                        raise Violation(f"the hash chain of block {block} on {server.node} is not the log's")
