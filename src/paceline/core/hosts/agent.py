"""The agent of a host: starts and ends roles as its supervisor says, and reports what they do. Rules 13 and 15.

No I/O: the shell (`engines.agent`) passes events and the time in, and carries out the effects.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from paceline.core.hosts.outbox import Outbox
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
"""Seconds between two heartbeats of a supervisor, and of an agent."""

_ASK_AGAIN_S = 1.0


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
        # Orders to start a role of which an earlier start has not ended yet.
        self._next: dict[str, StartRole] = {}
        self._has_session = False
        self._is_enlisted = False
        self._is_over = False
        self._ask_again_at: float | None = None
        self._term_s = 0.0
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
    def acknowledged(self) -> int:
        """The number of the last report that the supervisor has acknowledged."""
        return self._outbox.acknowledged

    @property
    def roles(self) -> dict[str, int]:
        """The start number of each role that runs, by name."""
        return dict(self._roles)

    # ------------------------------------------------------------ the session

    def connected(self, now: float) -> list[Effect]:
        """Enlist the host: a session with a supervisor has begun. An agent that ends does not offer its host again."""
        if self._is_over:
            return []
        self._has_session, self._is_enlisted, self._ask_again_at = True, False, None
        self._req += 1
        roles = [RunningRole(name, start) for name, start in self._roles.items()]
        roles += [RunningRole(name, order.start) for name, order in self._next.items()]
        last, seen = self._outbox.last, self._outbox.acknowledged
        return [Tell(Enlist(self._req, self._agent, self._facts, self._folder, self.run, tuple(roles), last, seen))]

    def disconnected(self) -> list[Effect]:
        """Keep the roles: the supervisor may return before its term has passed."""
        self._has_session = self._is_enlisted = False
        self._ask_again_at = None
        return []

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Handle a message of the supervisor. An agent that ends takes only acknowledgements."""
        self._heard_at = now
        if self._is_over and not isinstance(message, SupervisorBeat):
            return []
        match message:
            case Enlisted():
                return self._enlisted(message) if message.req == self._req else []
            case TurnedAway(reason=reason, final=final):
                self._ask_again_at = now + _ASK_AGAIN_S
                return self.end(reason, failed=True) if final else []
            case SupervisorBeat():
                return self._beat(message)
            case StartRole():
                return self._start(message)
            case SignalRole():
                return self._signal(message)
            case EnlistAgain():
                return self.connected(now)
            case EndHost(reason=reason):
                return self.end(reason)
        return []

    def _enlisted(self, message: Enlisted) -> list[Effect]:
        is_new = self.run != message.run
        self.run, self._term_s, self._is_enlisted = message.run, message.term_s, True
        effects: list[Effect] = [Begin(message.run, message.label)] if is_new else []
        counted = {role.name: role.start for role in message.roles}
        for name, start in self._roles.items():
            if counted.get(name) != start:  # the supervisor has counted it as lost, and may have started it elsewhere
                effects.append(SignalProcess(name, signal.SIGKILL, group=True))
        self._next = {name: order for name, order in self._next.items() if counted.get(name) == order.start}
        self._outbox.rewind(message.seen)
        return effects + self._report()

    def _beat(self, message: SupervisorBeat) -> list[Effect]:
        self._outbox.acknowledge(message.seen)
        effects = self._report()
        if message.coordinator and message.coordinator != self._coordinator:
            self._coordinator = message.coordinator
            effects.append(Announce(message.coordinator))
        return effects

    def _start(self, order: StartRole) -> list[Effect]:
        known = self._roles.get(order.name)
        if known is None:
            self._roles[order.name] = order.start
            return [StartProcess(order)]
        if known >= order.start:
            return []  # this start was asked for before
        self._next[order.name] = order  # the earlier start does not count any more, but has not ended yet
        return [SignalProcess(order.name, signal.SIGKILL, group=True)]

    def _signal(self, message: SignalRole) -> list[Effect]:
        name, start = message.name, message.start
        if self._roles.get(name) == start:
            return [SignalProcess(name, message.number, message.group)]
        if name in self._next and self._next[name].start == start:  # it never ran
            del self._next[name]
            return self.ended(RoleEnded(name, start, -message.number))
        return []

    # ------------------------------------------------------------ reports

    def line(self, name: str, stream: str, text: str) -> list[Effect]:
        """Report a line that a role printed."""
        self._outbox.add(RoleLine(name, self._roles.get(name, 0), stream, text))
        return self._report()

    def saved(self, piece: SavedPiece) -> list[Effect]:
        """Report a piece of a file that the script saved, or of a recording."""
        self._outbox.add(piece)
        return self._report()

    def ended(self, end: RoleEnded) -> list[Effect]:
        """Report that a role has ended, or could not be started."""
        if self._roles.get(end.name) == end.start:
            del self._roles[end.name]
        self._outbox.add(end)
        effects = self._report()
        if end.name in self._next and end.name not in self._roles:
            effects += self._start(self._next.pop(end.name))
        return effects

    def _report(self) -> list[Effect]:
        return [Tell(message) for message in self._outbox.unsent()] if self._is_enlisted else []

    # ------------------------------------------------------------ time passes

    def end(self, reason: str, *, failed: bool = False) -> list[Effect]:
        """End the agent. Reports of the last ends are still sent."""
        self._is_over = True
        return [Over(reason, failed=failed)]

    def leave(self) -> list[Effect]:
        """Tell the supervisor that this host must leave, so that it empties the host."""
        self.leaving = True
        return []

    def tick(self, now: float) -> list[Effect]:
        """Show that the agent lives. If the supervisor's term has passed, end every role (rule 13).

        Pauses of this process count: the supervisor does not know of them, and gives up the host.
        """
        if self.run and now - self._heard_at > self._term_s:
            return self.end(f"the supervisor has not been heard for {self._term_s:.0f} s", failed=True)
        if self._has_session and self._ask_again_at is not None and now >= self._ask_again_at:
            return self.connected(now)
        return [Beat(AgentBeat(self.leaving))] if self._is_enlisted else []
