"""A supervisor and its agents under a virtual clock: links that are cut, and processes that end, without any I/O.

`HostTable` and `AgentCore` are the real ones; what their shells do is played here. `SimulatedHosts` checks rule 13 at
every start of a process, and that every end and every line arrives once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.hosts.agent import AgentCore, Beat, Effect, Over, SignalProcess, StartProcess, Tell
from paceline.core.hosts.choice import choose_host
from paceline.core.hosts.host_table import Gone, HostTable, Joined, Output, Reported, Say
from paceline.messages.base import Message
from paceline.messages.hosts import HostFacts, RoleEnded, RoleLine, StartRole

TERM_S = 30.0
STEP_S = 0.2
VERSIONS = {"paceline": "1"}
_BEAT_S = 0.5
_QUIET_S = 2.0  # after which a side gives up a session over which nothing comes
_EVICT_S = 5.0
_REGISTERS_S = 0.5

Start = tuple[str, int]


def facts_of(name: str, **changes: object) -> HostFacts:
    values: dict[str, object] = {"name": name, "address": "10.0.0.1", "cores": 2, "versions": VERSIONS}
    return HostFacts(**(values | changes))  # type: ignore[arg-type]


@dataclass(slots=True)
class Direction:
    """One direction of a link. While it is closed, messages wait; those of a session that has ended are dropped."""

    is_open: bool = True
    closed_at: float = 0.0
    waiting: deque[tuple[int, Message]] = field(default_factory=deque)

    def quiet(self, now: float) -> bool:
        return not self.is_open and now - self.closed_at > _QUIET_S


@dataclass(slots=True)
class Process:
    start: int
    began: float
    ends_at: float | None = None
    code: int = 0


class SimulatedAgent:
    """An agent process and the processes of roles that it has started."""

    def __init__(self, sim: SimulatedHosts, name: str, life: int) -> None:
        self.sim = sim
        self.name = name
        self.id = f"{name}-{life}"
        self.core = AgentCore(self.id, facts_of(name), f"/tmp/{name}")
        self.processes: dict[str, Process] = {}
        self.session: int | None = None
        self.over: Over | None = None
        self.paused_until = 0.0
        self.lines = 0
        self._beat: Message | None = None
        self._next_beat = 0.0

    def carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Tell(message=message):
                    self.send(message)
                case Beat(message=message):
                    self._beat = message
                case StartProcess(order=order):
                    self.sim.started(self, order)
                case SignalProcess(name=name, number=number):
                    if name in self.processes:
                        self.processes[name].ends_at = self.sim.now + self.sim.rng.choice([0.0, 0.1, 1.0])
                        self.processes[name].code = -number
                case Over():
                    self.over = effect
                    self.processes.clear()

    def send(self, message: Message) -> None:
        if self.session is not None:
            self.sim.up[self.name].waiting.append((self.session, message))

    def step(self) -> None:
        now = self.sim.now
        for name, process in list(self.processes.items()):
            if process.ends_at is not None and process.ends_at <= now:
                del self.processes[name]
                if self.over is None:
                    self.carry_out(self.core.ended(RoleEnded(name, process.start, process.code)))
        if self.over is None and self.processes and self.sim.rng.random() < 0.2:
            self.lines += 1
            name = self.sim.rng.choice(sorted(self.processes))
            self.carry_out(self.core.line(name, "OUT", str(self.lines)))
        if self.over is None:
            self.carry_out(self.core.tick(now))
        if self._beat is not None and now >= self._next_beat and self.over is None:
            self._next_beat = now + _BEAT_S
            self.send(self._beat)


class SimulatedSupervisor:
    """A launcher: counts where each name runs, and starts the names that do not run."""

    def __init__(self, sim: SimulatedHosts, *, adopt: bool) -> None:
        self.sim = sim
        self.table = HostTable("run", "run", VERSIONS, TERM_S, "10.0.0.9")
        self.counted: dict[str, int] = {}
        self.adopting = adopt
        self.deadline = sim.now + self.table.lost_after_s
        self.lines: dict[str, int] = {}

    def carry_out(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case Say(to=peer, message=message):
                    name, _, session = peer.partition("/")
                    self.sim.down[name].waiting.append((int(session), message))
                case Joined():
                    if self.adopting:
                        self.counted |= self.table.adopt(output, self.sim.starts)
                    self.carry_out(self.table.welcome(output))
                case Gone(roles=roles):
                    for role in roles:
                        self.ended(role.name, role.start)
                case Reported(host=host, report=RoleEnded(name=name, start=start)):
                    self.ended(name, start)
                case Reported(host=host, report=RoleLine(text=text)):
                    self.line(self.table.hosts[host].agent, int(text))

    def ended(self, name: str, start: int) -> None:
        """Each end is reported once: of a start that counts."""
        assert self.counted.get(name) == start, f"the end of {name} {start} is reported, but {self.counted} count"
        del self.counted[name]

    def line(self, agent: str, number: int) -> None:
        """Lines come once and in order; a later supervisor may see some of them again, but misses none."""
        last = self.lines.get(agent)
        if last is None:
            assert number <= self.sim.seen.get(agent, 0) + 1, f"a line of {agent} is lost: {number}"
        else:
            assert number == last + 1, f"lines of {agent}: {number} follows {last}"
        self.lines[agent] = number
        self.sim.seen[agent] = max(number, self.sim.seen.get(agent, 0))

    def step(self) -> None:
        now = self.sim.now
        self.carry_out(self.table.tick(now, "tcp://10.0.0.9:1"))
        self.carry_out(self.table.declared(self.sim.members(), now))
        if self.adopting and (self.sim.carrying <= self.table.hosts.keys() or now > self.deadline):
            self.adopting = False
        if not self.adopting:
            for name in self.sim.wanted:
                if name not in self.counted:
                    self.start(name)
        self.sim.carrying = {name for name, host in self.table.hosts.items() if host.roles} | (
            self.sim.carrying if self.adopting else set()
        )

    def start(self, name: str) -> None:
        role = name.partition("-")[0]
        servers = [name for name in self.counted if name.startswith("server")]
        host = choose_host(role, self.table.loads(servers), 99.0)
        if host is None:
            return
        start = self.sim.starts[name] = self.sim.starts.get(name, 0) + 1
        self.table.assign(host, name, start)
        self.counted[name] = start
        peer = self.table.hosts[host].peer
        assert peer is not None
        self.carry_out([Say(peer, StartRole(name, start, b"", "/", {}))])


class SimulatedHosts:
    """All of them, and a coordinator that evicts processes it does not hear."""

    def __init__(self, hosts: Sequence[str], wanted: Sequence[str], seed: int = 0) -> None:
        self.now = 100.0
        self.rng = random.Random(seed)
        self.wanted = wanted
        self.starts: dict[str, int] = {}
        self.carrying: set[str] = set()
        self.seen: dict[str, int] = {}
        self.up = {name: Direction() for name in hosts}
        self.down = {name: Direction() for name in hosts}
        self.roles_reach = dict.fromkeys(hosts, True)
        self.agents: dict[str, SimulatedAgent | None] = {}
        self.supervisor: SimulatedSupervisor | None = SimulatedSupervisor(self, adopt=False)
        self.lost: set[Start] = set()
        self._heard: dict[Start, float] = {}
        self._lives = self._sessions = 0
        self._at_supervisor: dict[str, int] = {}
        for name in hosts:
            self.start_agent(name)

    # ------------------------------------------------------------ faults

    def start_agent(self, name: str) -> None:
        self._lives += 1
        self.agents[name] = SimulatedAgent(self, name, self._lives)

    def kill_agent(self, name: str) -> None:
        """Kill an agent; its roles die with it."""
        self.agents[name] = None

    def kill_supervisor(self) -> None:
        self.supervisor = None
        self._at_supervisor.clear()

    def adopt(self) -> None:
        self.supervisor = SimulatedSupervisor(self, adopt=True)

    def cut(self, name: str, *, up: bool = True, down: bool = True, roles: bool = True) -> None:
        for direction, closes in ((self.up[name], up), (self.down[name], down)):
            if closes and direction.is_open:
                direction.is_open, direction.closed_at = False, self.now
        self.roles_reach[name] = self.roles_reach[name] and not roles

    def heal(self, name: str) -> None:
        self.up[name].is_open = self.down[name].is_open = self.roles_reach[name] = True

    # ------------------------------------------------------------ what runs

    def running(self) -> dict[Start, str]:
        """The host of each process that runs."""
        agents = [agent for agent in self.agents.values() if agent is not None]
        return {(name, p.start): agent.name for agent in agents for name, p in agent.processes.items()}

    def started(self, agent: SimulatedAgent, order: StartRole) -> None:
        """Rule 13: no other start of this name runs, except one that the coordinator has declared lost."""
        assert order.name not in agent.processes, f"{order.name} runs on {agent.name} already"
        others = {s: h for s, h in self.running().items() if s[0] == order.name and s not in self.lost}
        assert not others, f"at {self.now:.1f} {order.name} {order.start} begins on {agent.name}, beside {others}"
        agent.processes[order.name] = Process(order.start, self.now)

    def members(self) -> set[Start]:
        """The processes that the coordinator counts; it evicts those that it has not heard for a while."""
        for start, host in self.running().items():
            agent = self.agents[host]
            registers = agent is not None and self.now - agent.processes[start[0]].began >= _REGISTERS_S
            if self.roles_reach[host] and registers and start not in self.lost:
                self._heard[start] = self.now
        for start in [start for start, at in self._heard.items() if self.now - at > _EVICT_S]:
            del self._heard[start]
            self.lost.add(start)
        return set(self._heard)

    # ------------------------------------------------------------ time

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            for name in self.up:
                self._step_link(name)
            if self.supervisor is not None:
                self.supervisor.step()
            self.members()
            for name, agent in self.agents.items():
                if agent is not None and self.now >= agent.paused_until:
                    agent.step()
                    self.agents[name] = None if agent.over is not None else agent

    def _step_link(self, name: str) -> None:
        agent, up, down = self.agents[name], self.up[name], self.down[name]
        here = self._at_supervisor.get(name)
        if agent is not None and self.now < agent.paused_until:
            return
        mine = None if agent is None else agent.session
        if agent is not None and mine is not None and (down.quiet(self.now) or (down.is_open and here != mine)):
            agent.session = None
            agent.carry_out(agent.core.disconnected())
        if here is not None and (up.quiet(self.now) or (up.is_open and (agent is None or agent.session != here))):
            self._supervisor_loses(name)
        if agent is not None and agent.session is None and up.is_open and down.is_open and self.supervisor is not None:
            self._supervisor_loses(name)
            self._sessions += 1
            agent.session = self._at_supervisor[name] = self._sessions
            agent.carry_out(agent.core.connected(self.now))
        self._deliver(name)

    def _supervisor_loses(self, name: str) -> None:
        session = self._at_supervisor.pop(name, None)
        if session is not None and self.supervisor is not None:
            self.supervisor.carry_out(self.supervisor.table.session_lost(f"{name}/{session}"))

    def _deliver(self, name: str) -> None:
        agent, up, down = self.agents[name], self.up[name], self.down[name]
        for _ in range(len(up.waiting) if up.is_open else 0):
            session, message = up.waiting.popleft()
            if self.supervisor is not None and self._at_supervisor.get(name) == session:
                self.supervisor.carry_out(self.supervisor.table.handle(f"{name}/{session}", message, self.now))
        for _ in range(len(down.waiting) if down.is_open else 0):
            session, message = down.waiting.popleft()
            if agent is not None and agent.session == session and agent.over is None:
                agent.carry_out(agent.core.handle(message, self.now))

    def check_agreement(self) -> None:
        """Both sides agree on the roles, and every wanted name runs once."""
        assert self.supervisor is not None
        table = {name: dict(host.roles) for name, host in self.supervisor.table.hosts.items()}
        agents = {name: agent.core.roles for name, agent in self.agents.items() if agent is not None}
        assert table == agents
        assert sorted(name for name, _ in self.running()) == sorted(self.wanted)
        assert set(self.running()) == set(self.supervisor.counted.items())
