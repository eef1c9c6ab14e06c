"""The agent of a host: starts and ends roles as its supervisor says, and reports what they do. Rules 13 and 15.

No I/O: the shell (`engines.agent`) passes events and the time in, and carries out the effects.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from paceline.core.hosts.outbox import Outbox
from paceline.core.running_time import RunningTime
from paceline.messages.base import Message
from paceline.messages.hosts import (
    AgentBeat,
    EndHost,
    Enlist,
    EnlistAgain,
    Enlisted,
    HostFacts,
    RoleEnded,
    RoleLine,
    RunningRole,
    SavedPiece,
    SignalRole,
    StartRole,
    SupervisorBeat,
    TurnedAway,
)

BEAT_S = 0.5
"""Seconds between two heartbeats of a supervisor."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to the supervisor, with which there is a session."""

    message: Message


@dataclass(frozen=True, slots=True)
class Beat:
    """Repeat this message to the supervisor a few times a second, also while the shell does something else."""

    message: Message


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start a process. If that fails, pass a `RoleEnded` with the problem to `AgentCore.ended`."""

    order: StartRole


@dataclass(frozen=True, slots=True)
class SignalProcess:
    """Send a signal to the process called `name`."""

    name: str
    number: int
    group: bool


@dataclass(frozen=True, slots=True)
class Announce:
    """Write the coordinator's address for the roles of this host."""

    address: str


@dataclass(frozen=True, slots=True)
class Begin:
    """Prepare the directory of `run`, which the host takes part in from now on. Its user knows it as `label`."""

    run: str
    label: str


@dataclass(frozen=True, slots=True)
class Over:
    """End every role, remove the directory of the run, and end the agent, unless it waits for the next run.

    `failed` says that the host was not wanted or has lost its supervisor.
    """

    reason: str
    failed: bool = False


Effect = Tell | Beat | StartProcess | SignalProcess | Announce | Begin | Over


class AgentCore:
    """What one agent knows: its supervisor's term, the roles that it has started, and reports not yet acknowledged."""

    def __init__(self, agent: str, facts: HostFacts, folder: str) -> None:
        self.run = ""
        self.leaving = False
        self._agent = agent
        self._facts = facts
        self._folder = folder
        self._outbox = Outbox()
        self._roles: dict[str, int] = {}
        self._has_session = False
        self._is_enlisted = False
        self._term_s = 0.0
        self._clock = RunningTime()
        self._heard_at = 0.0
        self._coordinator = ""
        self._req = 0

    @property
    def is_full(self) -> bool:
        """Whether the shell must not read more output of the roles now."""
        return self._outbox.is_full

    @property
    def has_reported(self) -> bool:
        """Whether the supervisor has acknowledged every report."""
        return self._outbox.is_empty

    @property
    def roles(self) -> dict[str, int]:
        """The start number of each role that runs, by name."""
        return dict(self._roles)

    # ------------------------------------------------------------ the session

    def connected(self, now: float) -> list[Effect]:
        """Enlist the host: a session with a supervisor has begun."""
        self._clock.advance(now)
        self._has_session, self._is_enlisted = True, False
        self._req += 1
        roles = tuple(RunningRole(name, start) for name, start in self._roles.items())
        last = self._outbox.last
        return [Tell(Enlist(self._req, self._agent, self._facts, self._folder, self.run, roles, last))]

    def disconnected(self) -> list[Effect]:
        """Keep the roles: the supervisor may return before its term has passed."""
        self._has_session = self._is_enlisted = False
        return []

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Handle a message of the supervisor."""
        self._heard_at = self._clock.advance(now)
        match message:
            case Enlisted():
                return self._enlisted(message) if message.req == self._req else []
            case TurnedAway(reason=reason, final=final):
                return [Over(reason, failed=True)] if final else []
            case SupervisorBeat(coordinator=address, seen=seen):
                self._outbox.acknowledge(seen)
                if not address or address == self._coordinator:
                    return []
                self._coordinator = address
                return [Announce(address)]
            case StartRole():
                return self._start(message)
            case SignalRole(name=name, start=start, number=number, group=group):
                return [SignalProcess(name, number, group)] if self._roles.get(name) == start else []
            case EnlistAgain():
                return self.connected(now)
            case EndHost(reason=reason):
                return [Over(reason)]
        return []

    def _enlisted(self, message: Enlisted) -> list[Effect]:
        is_new = self.run != message.run
        self.run, self._term_s, self._is_enlisted = message.run, message.term_s, True
        effects: list[Effect] = [Begin(message.run, message.label)] if is_new else []
        counted = {role.name: role.start for role in message.roles}
        for name, start in self._roles.items():
            if counted.get(name) != start:  # the supervisor has counted it as lost, and may have started it elsewhere
                effects.append(SignalProcess(name, signal.SIGKILL, group=True))
        self._outbox.rewind(message.seen)
        return effects + self._report()

    def _start(self, order: StartRole) -> list[Effect]:
        known = self._roles.get(order.name)
        if known is not None:
            return []  # this start was asked for before, or an earlier one has not ended yet
        self._roles[order.name] = order.start
        return [StartProcess(order)]

    # ------------------------------------------------------------ reports

    def line(self, name: str, stream: str, text: str) -> list[Effect]:
        """Report a line that a role printed."""
        self._outbox.add(RoleLine(name, self._roles.get(name, 0), stream, text))
        return self._report()

    def saved(self, piece: SavedPiece) -> list[Effect]:
        """Report a piece of a file that the script saved."""
        self._outbox.add(piece)
        return self._report()

    def ended(self, end: RoleEnded) -> list[Effect]:
        """Report that a role has ended, or could not be started."""
        if self._roles.get(end.name) == end.start:
            del self._roles[end.name]
        self._outbox.add(end)
        return self._report()

    def _report(self) -> list[Effect]:
        return [Tell(message) for message in self._outbox.unsent()] if self._is_enlisted else []

    # ------------------------------------------------------------ time passes

    def leave(self) -> list[Effect]:
        """Tell the supervisor that this host must leave, so that it empties the host."""
        self.leaving = True
        return []

    def tick(self, now: float) -> list[Effect]:
        """Show that the agent lives. If the supervisor's term has passed, end every role (rule 13)."""
        ran = self._clock.advance(now)
        if self.run and ran - self._heard_at > self._term_s:
            return [Over(f"the supervisor has not been heard for {self._term_s:.0f} s", failed=True)]
        return [Beat(AgentBeat(self.leaving))] if self._is_enlisted else []
