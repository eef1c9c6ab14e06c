"""The coordinator and a parameter server as processes of the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.core.coordinator.checkpoints import folder_name
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.effects import Complete, Drop, Effect, Send, Write
from paceline.core.running_time import RunningTime
from paceline.core.server.dispatch import ServerCore
from paceline.messages import BeatAck, GiveBack, Message, PullReply, Push, Register, Turn, Welcome
from paceline.sim.symbols import SymbolStore, Value, content_hash
from paceline.sim.world import Node
from paceline.types import COORDINATOR, Commit, NodeId, start_of

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster

_TICK_S = 0.25
_HASH_S = 0.1


class SimCoordinator(Node):
    """One start of the coordinator process; it writes to the cluster's disk."""

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
        """Write the manifest and the marker file after a random time, unless the coordinator dies before."""
        cluster = self.cluster
        problem = "disk full" if cluster.faults.chance("full", cluster.scenario.habits.disk_full) else ""
        if not problem:
            cluster.disk.complete(effect.checkpoint, effect.chains, effect.drop)
        now = self._running.advance(cluster.world.now)
        self._carry_out(self.core.completed(effect.checkpoint.folder, problem, now))

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """One message."""
        if isinstance(message, Turn):
            if message.abandoned is not None:
                self.cluster.log_checks.voids(message.abandoned)
        elif isinstance(message, GiveBack):
            self.cluster.log_checks.voids(message.fence)
        now = self._running.advance(self.cluster.world.now)
        if self.timer is None:
            self._carry_out(self.core.handle(sender, message, payload, now))
            return
        began = self.timer()
        effects = self.core.handle(sender, message, payload, now)
        self.spent_s += self.timer() - began
        self._carry_out(effects)

    def lost(self, node: NodeId) -> None:
        """Tell the core that the session with `node` has ended."""
        now = self._running.advance(self.cluster.world.now)
        self._carry_out(self.core.lost(node, "the session ended", now))

    def sessions_lost(self, nodes: Sequence[NodeId]) -> None:
        """Tell the core that the sessions with all of `nodes` have ended."""
        now = self._running.advance(self.cluster.world.now)
        self._carry_out(self.core.sessions_lost(nodes, now))

    def _tick(self) -> None:
        now = self._running.advance(self.cluster.world.now)
        self._carry_out(self.core.tick(now))
        self.cluster.world.after(_TICK_S, self, self._tick)

    def _carry_out(self, effects: list[Effect]) -> None:
        checks, members = self.cluster.log_checks, self.core.tables.members.members
        if len(members) < self._members:
            checks.evict_all_but(members)
            for worker in self.cluster.workers:
                if worker.node not in members:
                    worker.set_evicted(True)  # a stopped worker may never get a message about this
        self._members = len(members)
        for effect in effects:
            if isinstance(effect, Send):
                checks.sends(effect)
                self.cluster.network.send(COORDINATOR, effect.to, effect.message)
            elif isinstance(effect, Write):
                checks.wrote(effect)
                self.cluster.disk.write(effect)
                if isinstance(effect.row, Commit):
                    self.cluster.server_pool.check_commit(effect.row)
            elif isinstance(effect, Drop):
                self.cluster.disk.drop(effect.folders)
            else:
                checks.completed(effect)
                self.cluster.world.after(self.cluster.rng.uniform(0.0, 0.3), self, self._complete, effect)


class SimServer(Node):
    """One start of a parameter server process."""

    def __init__(self, cluster: Cluster, name: str, node: NodeId, host: str) -> None:
        super().__init__(node)
        self.cluster = cluster
        self.introduction = Register(1, "server", name, start_of(node) or 1, host, f"sim://{node}")
        scenario = cluster.scenario
        self.core = ServerCore(
            node,
            lambda: SymbolStore(cluster.server_checks, cluster.disk, node, lambda: self.core.assignment.at),
            heartbeat_s=scenario.cluster.heartbeat_s,
            part_nbytes=scenario.part_nbytes,
            reach_s=scenario.cluster.reach_s,
        )
        assert isinstance(self.core.own.store, SymbolStore)
        self.store = self.core.own.store  # holds the blocks whose primary is this server
        self.retired = False
        self._welcome = False

    def retire(self) -> None:
        """End the process. It is not started again until the wanted number of servers rises."""
        self.die()
        self.retired = True

    def stores(self, what: str) -> list[object]:
        """The contents of all stores of this server; `what` is ``terms`` (of sums) or ``kept`` (versions)."""
        groups = (self.core.own, *self.core.backups.groups)
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
        """Notice that there is a new coordinator, and register with it."""
        if self._welcome:
            self._send([Send(COORDINATOR, self.core.introduce(self.introduction))])

    def _save(self) -> None:
        """Write the frozen version to the disk after a random time, unless the server dies before."""
        if self.store.frozen is None:
            return
        version, values = self.store.thaw()
        problem = "disk full" if self.cluster.faults.chance("full", self.cluster.scenario.habits.disk_full) else ""
        if not problem and version == self.core.saving.version:
            self.cluster.disk.put(folder_name(self.core.assignment.incarnation, version), values)
        self._send(self.core.saved(version, (), problem))

    def _hash(self, version: int, frozen: tuple[dict[int, Value], ...]) -> None:
        """Report the hashes of the content of all blocks that have copies."""
        contents = {block: content_hash(value) for values in frozen for block, value in values.items()}
        self._send(self.core.contents.hashed(version, contents))

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """One message."""
        if isinstance(message, BeatAck):
            if not message.known:
                self.notice()
        elif isinstance(message, Welcome):
            self._welcome = True
        before = self.store.frozen
        self._send(self.core.handle(sender, message, payload, self.cluster.world.now))
        self._send(self.core.proceed())
        if isinstance(message, Push):
            self.cluster.server_checks.held(self.core, message.step)
        if (frozen := self.core.contents.take()) and self.core.contents.version is not None:
            self.cluster.world.after(_HASH_S, self, self._hash, self.core.contents.version, frozen)
        if self.store.frozen is not before and self.store.frozen is not None:
            self.cluster.world.after(self.cluster.rng.uniform(0.0, 0.5), self, self._save)

    def _tick(self) -> None:
        self._send(self.core.tick(self.cluster.world.now))
        self.cluster.world.after(_TICK_S, self, self._tick)

    def _send(self, sends: list[Send]) -> None:
        network = self.cluster.network
        for send in sends:
            if isinstance(send.message, PullReply):
                self.cluster.server_checks.replied(self.core, send.message)
            network.send(self.node, send.to, send.message, send.payload)
