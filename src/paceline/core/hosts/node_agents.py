"""Which nodes of a cluster carry an agent of the run, when one is started again, and when the run is given up. No I/O.

The shell (`engines.carriers.ray`) passes in what it sees, and carries out what is returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.hosts.node_shares import Node, Share, Wanted, further_shares, surplus_host

START_S = 60.0
"""Seconds that a node has to start the process that carries an agent."""
JOIN_S = 60.0
"""Seconds that a started agent has to reach the supervisor."""
BEGIN_S = 120.0
"""Seconds within which the nodes that the run waits for must have joined; afterwards it ends."""
_AGAIN_S = 3.0
_ASK_AGAIN_S = 10.0
_TRIES = 5
_SURPLUS_S = 10.0


@dataclass(frozen=True, slots=True)
class StartAgent:
    """Start the agent called `name` on a node."""

    name: str
    share: Share


@dataclass(frozen=True, slots=True)
class StopAgent:
    """End an agent that did not start or join in time, or whose node is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell the user."""

    text: str


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Empty this host: the run can no longer use it."""

    host: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the run before its start: no agent can be brought, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How an agent has ended. With `left`, its host has left; with `final`, another agent there would fail alike.

    With `died`, what carried it has died, perhaps with its node: the loss of the host says so.
    """

    reason: str
    left: bool = False
    final: bool = False
    died: bool = False


AgentAction = StartAgent | StopAgent | Warn | GiveBack | GiveUp


@dataclass(slots=True)
class _Agent:
    share: Share
    asked_at: float
    up_at: float | None = None
    has_joined: bool = False
    given_back: bool = False
    given_at: float = 0.0


@dataclass(slots=True)
class _Node:
    """What happened on a node: starts in all, failures since the last success, when to try again, and the last reason.

    With `closed`, no agent is started there any more.
    """

    starts: int = 0
    failures: int = 0
    due: float = 0.0
    reason: str = ""
    closed: bool = False


@dataclass(slots=True)
class NodeAgents:
    """The agents that an engine carries, one on each node that the run uses. A further start has a new name (rule 13).

    `fixed` says that the cluster cannot grow. `engine` begins the names of the hosts.
    """

    engine: str
    fixed: bool = False
    _nodes: dict[str, Node] | None = None
    _agents: dict[str, _Agent] = field(default_factory=dict)
    _history: dict[str, _Node] = field(default_factory=dict)
    _asked_at: float | None = None
    _began_at: float | None = None
    _has_begun: bool = False
    _has_warned: bool = False
    _surplus_since: float | None = None
    _ready: list[AgentAction] = field(default_factory=list)

    # ------------------------------------------------------------ what was seen

    def see(self, nodes: Sequence[Node]) -> None:
        """Take note of the nodes that are alive now."""
        self._nodes = {node.name: node for node in nodes}

    def up(self, name: str, now: float) -> None:
        """Take note that the process of an agent has been started."""
        if (agent := self._agents.get(name)) is None:
            return
        agent.up_at = now
        if not agent.share.reserved:
            node = agent.share.node
            self._ready.append(Warn(f"node {node} has no free core: the roles there share its cores with others"))

    def ended(self, name: str, now: float, end: AgentEnd) -> None:
        """Take note that an agent has ended."""
        agent = self._agents.pop(name, None)
        if agent is None:
            return
        if end.left:
            self._history[agent.share.node].closed = not agent.given_back
        elif agent.share.node in (self._nodes or {}):
            self._failed(agent, now, end)

    def _failed(self, agent: _Agent, now: float, end: AgentEnd) -> None:
        node = self._history[agent.share.node]
        node.failures = 1 if agent.has_joined else node.failures + 1
        node.reason = end.reason
        node.closed = end.final or node.failures >= _TRIES
        node.due = now + _AGAIN_S
        if not end.died or node.closed:
            then = "none is started there again" if node.closed else f"another is started in {_AGAIN_S:.0f} s"
            self._ready.append(Warn(f"the agent on node {agent.share.node} has ended: {end.reason}; {then}"))

    # ------------------------------------------------------------ decisions

    def coming(self, joined: Mapping[str, int]) -> int:
        """How many agents are on their way; at least 1 until the nodes of the cluster are known."""
        if self._nodes is None or self._began_at is None:
            return 1
        return sum(name not in joined for name in self._agents)

    def tick(self, now: float, joined: Mapping[str, int], wanted: Wanted) -> list[AgentAction]:
        """Decide what to do now. `joined` has the number of roles on each host that takes part."""
        self._asked_at = now if self._asked_at is None else self._asked_at
        if self._nodes is None:
            late = now - self._asked_at > BEGIN_S
            return [GiveUp(f"the {self.engine} cluster has not told its nodes within {BEGIN_S:.0f} s")] if late else []
        self._began_at = now if self._began_at is None else self._began_at
        self._has_begun |= wanted.has_begun or any(joined.values())
        for name in self._agents.keys() & joined.keys():
            self._agents[name].has_joined = True
            self._history[self._agents[name].share.node].failures = 0
        actions = self._end_late(now, self._nodes)
        actions += self._start(now, self._nodes, wanted)
        actions += self._give_back(now, joined, wanted)
        if not self._has_begun:
            actions += self._give_up(now, joined, wanted)
        actions, self._ready = self._ready + actions, []
        return actions

    def _end_late(self, now: float, nodes: Mapping[str, Node]) -> list[AgentAction]:
        actions: list[AgentAction] = []
        for name, agent in list(self._agents.items()):
            if agent.share.node not in nodes:
                del self._agents[name]
            elif agent.has_joined:
                continue
            elif agent.up_at is None and now - agent.asked_at > START_S:
                del self._agents[name]
                self._failed(agent, now, AgentEnd(f"the node did not start it within {START_S:.0f} s"))
            elif agent.up_at is not None and now - agent.up_at > JOIN_S:
                del self._agents[name]
                why = f"it did not reach this run within {JOIN_S:.0f} s: give --listen an address that it can reach"
                self._failed(agent, now, AgentEnd(why))
            else:
                continue
            actions.append(StopAgent(name))
        return actions

    def _start(self, now: float, nodes: Mapping[str, Node], wanted: Wanted) -> list[AgentAction]:
        taken = {agent.share.node for agent in self._agents.values()}
        kept = [agent for agent in self._agents.values() if not agent.given_back]
        open_nodes = [
            node
            for name, node in nodes.items()
            if name not in taken and not (past := self._history.setdefault(name, _Node())).closed and past.due <= now
        ]
        actions: list[AgentAction] = []
        for share in further_shares(open_nodes, [agent.share.cores for agent in kept], wanted):
            past = self._history[share.node]
            past.starts += 1
            name = f"{self.engine}-{share.node}" + (f"-{past.starts}" if past.starts > 1 else "")
            self._agents[name] = _Agent(share, now)
            actions.append(StartAgent(name, share))
        if actions and not self._has_warned:
            cores = sum(agent.share.cores for agent in self._agents.values())
            if wanted.roles > cores and not wanted.unlimited:
                self._has_warned = True
                actions.append(
                    Warn(f"the run has {wanted.roles} roles, its nodes {cores} free cores: roles share them")
                )
        return actions

    def _give_back(self, now: float, joined: Mapping[str, int], wanted: Wanted) -> list[AgentAction]:
        for name, agent in self._agents.items():
            if agent.given_back and name in joined and now - agent.given_at >= _ASK_AGAIN_S:
                agent.given_at = now
                return [GiveBack(name)]  # the coordinator may have refused
        kept = {name: agent for name, agent in self._agents.items() if agent.has_joined and not agent.given_back}
        host = surplus_host({name: agent.share.cores for name, agent in kept.items()}, joined, wanted)
        if host is None or not self._has_begun:
            self._surplus_since = None
            return []
        self._surplus_since = now if self._surplus_since is None else self._surplus_since
        if now - self._surplus_since < _SURPLUS_S:
            return []
        self._surplus_since = None
        self._agents[host].given_back, self._agents[host].given_at = True, now
        return [GiveBack(host)]

    def _give_up(self, now: float, joined: Mapping[str, int], wanted: Wanted) -> list[AgentAction]:
        """The end of a run that cannot begin: nobody is on the way, and no node is left to try, or it took too long."""
        assert self._nodes is not None
        assert self._began_at is not None
        if len(joined) >= wanted.hosts and (joined or not wanted.hosts):
            return []
        usable = [name for name, node in self._nodes.items() if node.cores > 0]
        left = [name for name in usable if not self._history[name].closed]
        stuck = bool(usable) and not left and not self._agents
        too_few = self.fixed and len(usable) < wanted.hosts
        if not (stuck or too_few) and now - self._began_at < BEGIN_S:
            return []
        reasons = [f"node {name}: {past.reason}" for name, past in self._history.items() if past.reason]
        if not reasons:
            reasons = [f"it has {len(usable)} with cores; add nodes, or lower --replicas and --min-hosts"]
        there = f"{len(joined)} of {wanted.hosts} nodes joined"
        waited = "" if stuck or too_few else f" within {BEGIN_S:.0f} s"
        return [GiveUp(f"the {self.engine} cluster cannot carry the run: {there}{waited}; {'; '.join(reasons)}")]
