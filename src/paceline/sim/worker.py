"""A simulated worker process: the worker's core, a model made of symbols, and the training script."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, cast

import msgspec

from paceline.core.effects import Send
from paceline.core.layout import cut
from paceline.core.worker.dispatch import Fill, WorkerCore
from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    Abort,
    Beat,
    Message,
    PullReply,
    Push,
    Reachable,
    Refused,
    Register,
    Unreachable,
    Welcome,
)
from paceline.sim.groups import SimMember
from paceline.sim.host_names import fingerprint_of
from paceline.sim.script import Ask, Ready, Sleep, TrainingScript
from paceline.sim.symbols import Reads, Value
from paceline.sim.world import Node, Violation
from paceline.types import COORDINATOR, INIT_STEP, NodeId, member_name

if TYPE_CHECKING:
    from paceline.sim.cluster import Cluster


_AWAKE = (WorkerState.COMPUTING, WorkerState.INITIALISING, WorkerState.OVER, WorkerState.ABORTED)


class SimWorker(Node):
    """One start of a worker. All its random choices come from `rng`."""

    def __init__(self, cluster: Cluster, name: str, node: NodeId, speed: float, rng: Random, host: str) -> None:
        super().__init__(node)
        self.cluster = cluster
        self.scenario = cluster.scenario
        self.speed = speed
        self.host = host
        self.rng = rng
        introduction = Register(
            1,
            "worker",
            name,
            cluster.starts,
            host,
            None,
            self.scenario.job,
            fingerprint=fingerprint_of(self.scenario, host),
        )
        member = f"{member_name(name)}/{cluster.starts}" if self.scenario.cluster.collective else ""
        self.core = WorkerCore(
            introduction, resend_s=self.scenario.resend_s, part_nbytes=self.scenario.part_nbytes, member=member
        )
        if member:
            self.threads.append(cluster.server_pool.add_member(member_name(name), member, host))
        self.blocks = cut(self.scenario.model.tensors)
        self.values: list[Value | None] = [None] * len(self.blocks)
        self.versions: list[int] = [-1] * len(self.blocks)
        self.done = False
        self.evicted = False
        self.leaving = False
        self.ended = False
        self._script = TrainingScript(self).run()
        self._asked: tuple[Ask, Message, float] | None = None
        self._waits = False
        self._sleeps = False
        self._mangled: dict[int, bool] = {}
        self._joining: Message | None = None
        self._noticed = False
        self._cut_since: dict[NodeId, float] = {}
        self._inbox: deque[tuple[NodeId, Message, tuple[object, ...]]] = deque()

    # ------------------------------------------------------------ events

    def start(self) -> None:
        """The process begins."""
        for member in self.threads:
            cast(SimMember, member).start()
        self._resume(None)
        self._tick()
        self._beat()

    def kill(self) -> None:
        """End the process without a message to any other process."""
        self.die()
        self._script.close()

    def set_evicted(self, evicted: bool) -> None:
        """Set whether the coordinator evicted this worker since it entered its phase.

        An evicted worker need not get the last version of the phase.
        """
        self.evicted = evicted

    def set_leaving(self, leaving: bool) -> None:
        """Set whether the script leaves the job after its current turn."""
        self.leaving = leaving

    def end(self) -> None:
        """Note that the script came to its end."""
        self.ended = True

    def notice(self) -> None:
        """Notice that there is a new coordinator, and register with it."""
        if self.done:
            return
        if self._sleeps and self.scenario.single_thread:
            self._noticed = True
        else:
            self._greet_coordinator()

    def _greet_coordinator(self) -> None:
        self._note_late()
        self.send_all(self.core.reconnected(self.cluster.world.now))

    def _note_late(self) -> None:
        """Count this worker as evicted if it registers late, because a new coordinator may not wait for it."""
        late_s = self.cluster.world.now - self.cluster.restarted_at
        self.evicted |= late_s > self.scenario.cluster.heartbeat_timeout_s / 2

    def receive(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        """Handle one message. A worker with a single thread handles it after it has computed."""
        if self._sleeps and self.scenario.single_thread:
            self._inbox.append((sender, message, payload))
        else:
            self._hear(sender, message, payload)

    def drain(self) -> None:
        """Handle the messages that have come while the script computed, up to one that ends the script."""
        while self._inbox and not self.done and not isinstance(self._inbox[0][1], Abort):
            self._hear(*self._inbox.popleft())

    def _hear(self, sender: NodeId, message: Message, payload: tuple[object, ...]) -> None:
        if self.done:
            return
        before = self.core.state
        if isinstance(message, Welcome) and message.generation > self.core.registration.generation > 0:
            self._note_late()
        for effect in self.core.handle(sender, message, payload, self.cluster.world.now):
            if isinstance(effect, Fill):
                self._fill(effect, message)
            elif isinstance(effect, Send):
                self._send(effect)
        if self.core.turn.abort is not None:
            if self.core.turn.abort.kind == "rewound":
                self.done = True
                self._script.close()
                self.end_threads()
                self.cluster.start_again(self)
                return
            if self.core.turn.abort.kind == "lost" and self.cluster.has_later_start(self):
                self.done = True
                self._script.close()
                self.end_threads()
                self.cluster.script_ended(self)
                return
            if self.cluster.coordinator.core.failure is None:
                raise Violation(f"{self.node} believes that the job failed: {self.core.turn.abort.reason}")
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
        if self.core.model.held[fill.server] == message.version:  # otherwise further parts follow
            for block in self.core.model.by_server[fill.server]:
                self.versions[block] = message.version

    def _answer(self, message: Message) -> None:
        """Handle the reply to a request of the script; an evicted worker registers and asks again."""
        if self._joining is not None and isinstance(message, Welcome):
            self._joining = None
            if self._asked is not None:
                self._ask(self._asked[0])
            return
        if self._asked is None or getattr(message, "req", None) != getattr(self._asked[1], "req", -1):
            return
        if isinstance(message, Refused):
            if message.rule == "dials":  # the script goes on as it was
                self._asked = None
                self._resume(message)
                return
            if message.rule != "unknown":
                raise Violation(f"{self.node} was refused: {message}")
            self._joining = self.core.registration.introduce()
            self._send(Send(COORDINATOR, self._joining))
            return
        self._asked = None
        self._resume(message)

    def _tick(self) -> None:
        if self.done:
            return
        world = self.cluster.world
        if not (self._sleeps and self.scenario.single_thread):
            self.send_all(self.core.tick(world.now))
        if self._asked is not None and world.now - self._asked[2] >= self.scenario.resend_s:
            ask, message, _ = self._asked
            self._asked = (ask, message, world.now)
            self._send(Send(COORDINATOR, self._joining or message))
        self._report_reach(world.now)
        world.after(self.scenario.tick_s, self, self._tick)

    def _report_reach(self, now: float) -> None:
        """Tell the core what a real transport would: which primaries are unreachable for long, or reachable again."""
        network, placement = self.cluster.network, self.core.model.placement
        if placement is None or not (network.cuts or self._cut_since):
            return
        for server in self.core.model.targets:
            if not network.is_cut(self.node, server) and not network.is_cut(server, self.node):
                if self._cut_since.pop(server, None) is not None:
                    self._send(Send(COORDINATOR, Reachable(server)))
                continue
            since = self._cut_since.setdefault(server, now)
            if now - since >= self.scenario.cluster.reach_s:
                self._send(Send(COORDINATOR, Unreachable(server, now - since, placement.epoch)))

    def _beat(self) -> None:
        if self.done and not any(member.alive for member in self.threads):  # a process stays as long as its member
            return
        self.cluster.network.send(self.node, COORDINATOR, Beat(self.node))
        self.cluster.world.after(self.scenario.cluster.heartbeat_s, self, self._beat)

    def _send(self, send: Send) -> None:
        message = send.message
        if isinstance(message, Push) and message.step != INIT_STEP and self._mangles(message):
            message = msgspec.structs.replace(message, base=-1)
        self.cluster.network.send(self.node, send.to, message, send.payload)

    def _mangles(self, push: Push) -> bool:
        """Whether this push names a wrong base version. The answer is the same for every repetition of a request."""
        if push.req not in self._mangled:
            self._mangled[push.req] = self.cluster.faults.on and self.rng.random() < self.scenario.habits.mangled
        return self._mangled[push.req]

    # ------------------------------------------------------------ the script's side

    def _resume(self, answer: Message | None) -> None:
        world = self.cluster.world
        try:
            wish = self._script.send(answer)
        except StopIteration:
            self.done = True
            world.note("done", self.node)
            self.cluster.script_ended(self)
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

    def reads(self) -> Reads:
        """The state on which a turn that begins now is computed."""
        return Reads(self.core.model.incarnation, tuple(self.versions), tuple(self.values))

    def send_all(self, sends: list[Send]) -> None:
        """Send the messages of the core."""
        for send in sends:
            self._send(send)
