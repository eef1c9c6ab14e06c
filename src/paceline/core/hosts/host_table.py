"""The hosts of a run as its supervisor knows them: sessions, roles, reports, and which hosts are lost. Rules 13 and 15.

No I/O: the shell (`engines.host_runner`) passes messages and the time in, and carries out what is returned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from paceline.core.hosts.agent import BEAT_S
from paceline.core.hosts.checks import address_problem, final_problem
from paceline.core.hosts.choice import HostLoad
from paceline.core.running_time import RunningTime
from paceline.messages.base import Message
from paceline.messages.hosts import (
    AgentBeat,
    EndHost,
    Enlist,
    EnlistAgain,
    Enlisted,
    HostFacts,
    Report,
    Reports,
    RoleEnded,
    RunningRole,
    SupervisorBeat,
    TurnedAway,
)
from paceline.types import NodeId

SILENT_S = 3.0
"""Seconds without a word of an agent after which its host counts as cut off."""

_MARGIN_S = SILENT_S + 5.0  # beyond the term of an agent that heard the last heartbeat: by then its roles are killed


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to an agent."""

    to: NodeId
    message: Message


@dataclass(frozen=True, slots=True)
class Joined:
    """A host takes part. With `again`, its agent has returned. Its `roles` run.

    With `was_away`, it was reported as cut off before: an agent that was slow may enlist many times in a row.
    Whoever reads this calls `HostTable.adopt` if it adopts a run, and then `HostTable.welcome`.
    """

    host: str
    facts: HostFacts
    again: bool
    roles: tuple[RunningRole, ...]
    req: int
    was_away: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """A host is lost, or has left: its `roles` do not run any more, or do not count any more."""

    host: str
    reason: str
    roles: tuple[RunningRole, ...]


@dataclass(frozen=True, slots=True)
class Leaves:
    """A host was told to leave; the supervisor empties it."""

    host: str


@dataclass(frozen=True, slots=True)
class CutOff:
    """Nothing is heard of a host's agent any more, or (`back`) it is heard again."""

    host: str
    back: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """An agent has reported something; each report is returned once, in order."""

    host: str
    report: Report


Output = Say | Joined | Gone | Leaves | CutOff | Reported


@dataclass(slots=True)
class Host:
    """One host. `peer` is the session with its agent, None without one. `roles` are those that count on this host.

    `seen` is the number of the last report that was handled, `reported` the number of the last report when the session
    began. `members` are roles that the coordinator has counted as members. `unproven` are roles of an earlier session
    that did not run when this one began: perhaps they were never started.
    """

    facts: HostFacts
    agent: str
    folder: str
    peer: NodeId | None
    heard_at: float
    roles: dict[str, int] = field(default_factory=dict)
    seen: int = 0
    reported: int = 0
    unproven: tuple[RunningRole, ...] = ()
    members: set[RunningRole] = field(default_factory=set)
    leaving: bool = False
    is_cut_off: bool = False

    @property
    def running(self) -> tuple[RunningRole, ...]:
        """The roles that count on this host."""
        return tuple(RunningRole(name, start) for name, start in self.roles.items())


class HostTable:
    """All hosts of the run called `run`, whose supervisor listens at the IP address `listen`.

    Time is running time: pauses of the supervisor are no silence of a host.
    """

    def __init__(self, run: str, label: str, versions: dict[str, str], term_s: float, listen: str) -> None:
        self.hosts: dict[str, Host] = {}
        self.problems: dict[str, str] = {}
        """Why a host was turned away, by name."""
        self._run = run
        self._label = label
        self._versions = versions
        self._term_s = term_s
        self._listen = listen
        self._clock = RunningTime()
        self._peers: dict[NodeId, str] = {}
        # The number of the last report that was handled of each agent whose host was given up.
        self._seen: dict[str, int] = {}
        self._next_beat = self._next_again = 0.0
        self.lost_after_s = term_s + _MARGIN_S
        """Seconds without a word of an agent after which none of its roles runs any more."""

    # ------------------------------------------------------------ who is there

    def loads(self, servers: Collection[str], samplers: Collection[str] = ()) -> list[HostLoad]:
        """The load of each host that can take roles. All roles but these `servers` and `samplers` are workers."""
        return [
            HostLoad(
                name=name,
                cores=host.facts.cores,
                workers=sum(role not in servers and role not in samplers for role in host.roles),
                servers=sum(role in servers for role in host.roles),
                samplers=sum(role in samplers for role in host.roles),
            )
            for name, host in self.hosts.items()
            if host.peer is not None and not host.leaving and not host.is_cut_off
        ]

    def host_of(self, role: str) -> Host | None:
        """The host on which `role` counts; None if it has none."""
        return next((host for host in self.hosts.values() if role in host.roles), None)

    def host_at(self, peer: NodeId) -> str | None:
        """The name of the host whose agent has the session `peer`; None if there is none."""
        return self._peers.get(peer)

    def assign(self, host: str, name: str, start: int) -> None:
        """Count start number `start` of `name` on `host`."""
        self.hosts[host].roles[name] = start

    def drain(self, host: str, *, undo: bool = False) -> None:
        """Give `host` no further roles; with `undo`, give it roles again."""
        if host in self.hosts:
            self.hosts[host].leaving = not undo

    # ------------------------------------------------------------ sessions

    def handle(self, peer: NodeId, message: Message, now: float) -> list[Output]:
        """Handle a message of an agent."""
        ran = self._clock.advance(now)
        if isinstance(message, Enlist):
            return self._enlist(peer, message, ran)
        name = self._peers.get(peer)
        if name is None:
            return self._again(peer, message, now)
        host = self.hosts[name]
        outputs = self._heard(name, host, ran)
        match message:
            case AgentBeat(leaving=leaving):
                if leaving and not host.leaving:
                    host.leaving = True
                    outputs.append(Leaves(name))
            case Reports():
                outputs += self._reports(name, host, message)
        return outputs

    def _again(self, peer: NodeId, message: Message, now: float) -> list[Output]:
        """Let the agent of a host that was given up enlist anew: it is heard again in the same session."""
        if not isinstance(message, AgentBeat) or now < self._next_again:
            return []
        self._next_again = now + BEAT_S
        return [Say(peer, EnlistAgain())]

    def _heard(self, name: str, host: Host, ran: float) -> list[Output]:
        host.heard_at = ran
        if not host.is_cut_off:
            return []
        host.is_cut_off = False
        return [CutOff(name, back=True)]

    def _enlist(self, peer: NodeId, message: Enlist, ran: float) -> list[Output]:
        facts, name = message.facts, message.facts.name
        known = self.hosts.get(name)
        problem = final_problem(facts, self._versions) or address_problem(facts, self._listen)
        if problem is None and message.run not in ("", self._run):
            problem = f"the agent serves another run ({message.run}): end it, or give this one another --name"
        if problem is not None:
            self.problems[name] = problem
            return [Say(peer, TurnedAway(message.req, problem))]
        is_same = known is not None and known.agent == message.agent
        if known is not None and not is_same:
            if known.peer is not None and not known.is_cut_off:
                problem = f"another agent is called {name}, at {known.facts.address}: give each host its own --name"
                return [Say(peer, TurnedAway(message.req, problem))]
            # The earlier agent may still run, cut off, with its roles: rule 13.
            wait = f"an earlier agent called {name} has not been counted as lost yet"
            return [Say(peer, TurnedAway(message.req, wait, final=False))]
        if known is None:
            seen = self._seen.pop(message.agent, message.acknowledged)
            known = self.hosts[name] = Host(facts, message.agent, message.folder, peer, ran, seen=seen)
        elif known.peer is not None:
            self._peers.pop(known.peer, None)
        if known.peer != peer:  # an order of the same session is not lost: the agent will get it
            known.unproven = tuple(role for role in known.running if role not in message.roles)
        was_away = known.is_cut_off
        known.peer, known.heard_at, known.facts, known.is_cut_off = peer, ran, facts, False
        known.reported = message.reported
        self.problems.pop(name, None)
        self._peers[peer] = name
        return [Joined(name, facts, is_same, message.roles, message.req, was_away)]

    def adopt(self, joined: Joined, starts: Mapping[str, int]) -> dict[str, int]:
        """Count the roles of a host that an earlier supervisor of the run has started; returns their start numbers.

        `starts` has the number of the last start of each name. An earlier start does not count: the supervisor that
        made the later one knew that the earlier one had ended or was lost (rule 13).
        """
        adopted = {role.name: role.start for role in joined.roles if starts.get(role.name) == role.start}
        self.hosts[joined.host].roles.update(adopted)
        return adopted

    def welcome(self, joined: Joined) -> list[Output]:
        """Answer `Enlist`, after the roles that count on the host were assigned."""
        host = self.hosts[joined.host]
        assert host.peer is not None
        answer = Enlisted(joined.req, self._run, self._label, self._term_s, host.seen, host.running)
        return [Say(host.peer, answer), *self._find_unstarted(joined.host, host)]

    def _find_unstarted(self, name: str, host: Host) -> list[Output]:
        """The ends of roles that count on a host, although its agent neither runs them nor reports their end.

        The order to start them was lost with the session before. Reports that are sent again must come first.
        """
        if host.seen < host.reported:
            return []
        lost = [role for role in host.unproven if host.roles.get(role.name) == role.start]
        host.unproven = ()
        for role in lost:
            del host.roles[role.name]
        return [Reported(name, RoleEnded(role.name, role.start, -9, "its host was cut off")) for role in lost]

    def session_lost(self, peer: NodeId) -> list[Output]:
        """Take note that the session with an agent has ended. Its host is not lost yet."""
        name = self._peers.pop(peer, None)
        if name is None or self.hosts[name].peer != peer:
            return []
        self.hosts[name].peer = None
        return self._cut(name, self.hosts[name])

    def _cut(self, name: str, host: Host) -> list[Output]:
        if host.is_cut_off:
            return []
        host.is_cut_off = True
        return [CutOff(name)]

    def _reports(self, name: str, host: Host, message: Reports) -> list[Output]:
        outputs: list[Output] = []
        for number, report in enumerate(message.items, message.first):
            if number != host.seen + 1:
                continue  # it was handled before
            host.seen = number
            if isinstance(report, RoleEnded):
                if host.roles.get(report.name) != report.start:
                    continue  # it has not counted any more
                del host.roles[report.name]
            outputs.append(Reported(name, report))
        return outputs + self._find_unstarted(name, host)

    # ------------------------------------------------------------ losses

    def declared(self, members: Collection[tuple[str, int]], now: float) -> list[Output]:
        """Give up the hosts that are cut off and of whose roles the coordinator has lost every one (rule 13).

        `members` has the (name, start) of each process that the coordinator counts now. A role that has never been a
        member is not lost: it may be about to register.
        """
        self._clock.advance(now)
        outputs: list[Output] = []
        for name, host in list(self.hosts.items()):
            here = {role for role in host.running if (role.name, role.start) in members}
            host.members |= here
            if host.is_cut_off and not here and host.members.issuperset(host.running):
                outputs += self._lose(name, "its agent does not answer, and the coordinator has lost all its roles")
        return outputs

    def _lose(self, name: str, reason: str) -> list[Output]:
        host = self.hosts.pop(name)
        self._seen[host.agent] = host.seen
        if host.peer is not None:
            self._peers.pop(host.peer, None)
        return [Gone(name, reason, host.running)]

    def dismiss(self, name: str, reason: str) -> list[Output]:
        """Let a host go that is empty: its agent ends."""
        host = self.hosts[name]
        peer = host.peer
        ends: list[Output] = [] if peer is None else [Say(peer, EndHost(reason))]
        return ends + self._lose(name, reason)

    # ------------------------------------------------------------ time passes

    def tick(self, now: float, coordinator: str) -> list[Output]:
        """Send heartbeats, find hosts that are cut off, and give up those whose term has passed."""
        ran = self._clock.advance(now)
        outputs: list[Output] = []
        for name, host in list(self.hosts.items()):
            silent_s = ran - host.heard_at
            if silent_s > self.lost_after_s:
                outputs += self._lose(name, f"its agent has not been heard for {silent_s:.0f} s")
            elif silent_s > SILENT_S:
                outputs += self._cut(name, host)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            for host in self.hosts.values():
                if host.peer is not None and not host.is_cut_off:  # else its agent might outlive this host's loss
                    outputs.append(Say(host.peer, SupervisorBeat(coordinator, host.seen)))
        return outputs
