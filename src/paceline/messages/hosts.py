"""Messages between the supervisor of a run and the agents of its hosts.

An agent dials the supervisor and enlists its host. The supervisor tells it which roles to start, to signal and to end.
The agent reports what they print and how they end; it repeats a report until the supervisor has acknowledged it.
"""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a host offers. `address` is where its roles listen; `cpu` names the kind of its processor.

    `versions` has the versions that must be equal on all hosts: paceline, torch, python.
    """

    name: str
    address: str
    cores: int
    memory_nbytes: int = 0
    devices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    cpu: str = ""


class RunningRole(msgspec.Struct, frozen=True, array_like=True):
    """Start number `start` of the process called `name`, which runs on a host."""

    name: str
    start: int


class Enlist(Message, frozen=True):
    """An agent offers its host: the first message of each session with a supervisor.

    `agent` names this process of the agent: an agent that is started again has another one. `folder` is the agent's
    directory for the run. `roles` run on the host, and `reported` is the number of the last report of the agent.
    `run` is the run that the agent has served before in this process, "" for none. `acknowledged` is the number of the
    last report that a supervisor has acknowledged: the agent can send the later ones again.
    """

    req: int
    agent: str
    facts: HostFacts
    folder: str
    run: str = ""
    roles: tuple[RunningRole, ...] = ()
    reported: int = 0
    acknowledged: int = 0


class Enlisted(Message, frozen=True):
    """The answer to `Enlist`: the host takes part in `run`. `seen` is the number of the last report that arrived.

    An agent that has not heard from the supervisor for `term_s` kills its roles. `roles` are the processes that the
    supervisor counts on this host: the agent kills any other.
    """

    req: int
    run: str
    label: str
    term_s: float
    seen: int
    roles: tuple[RunningRole, ...] = ()


class TurnedAway(Message, frozen=True):
    """The answer to `Enlist`: the host does not take part. With `final`, another attempt would change nothing."""

    req: int
    reason: str
    final: bool = True


class EnlistAgain(Message, frozen=True):
    """The supervisor has given up this host, and hears of its agent again: the agent enlists anew."""


class AgentBeat(Message, frozen=True):
    """The agent shows that it lives. With `leaving`, its host was told to leave (SIGTERM)."""

    leaving: bool = False


class SupervisorBeat(Message, frozen=True):
    """The supervisor shows that it lives. `coordinator` is the coordinator's address, "" before there is one.

    `seen` is the number of the last report of this agent that the supervisor has handled.
    """

    coordinator: str
    seen: int


class StartRole(Message, frozen=True):
    """Start a process. `spec` is its `RoleSpec` as JSON, `cwd` its directory, `env` variables with a low precedence."""

    name: str
    start: int
    spec: bytes
    cwd: str
    env: dict[str, str]


class SignalRole(Message, frozen=True):
    """Send a signal to start number `start` of the process called `name`; with `group`, to its whole process group."""

    name: str
    start: int
    number: int
    group: bool = False


class RoleLine(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A line that a process printed. `stream` is out, err or last."""

    name: str
    start: int
    stream: str
    text: str

    @property
    def nbytes(self) -> int:
        """About how many bytes this report takes in a message."""
        return len(self.text) + 32


class RoleEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A process has ended; a negative `code` is the signal that killed it. `problem` says why it was not started."""

    name: str
    start: int
    code: int
    problem: str = ""

    @property
    def nbytes(self) -> int:
        """About how many bytes this report takes in a message."""
        return len(self.problem) + 32


class SavedPiece(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bytes of a file that the script saved on a host: at most 128 KiB from `offset` on; the `last` piece ends it.

    `path` is relative to the script's working directory. With `trace` it is a recording of a role, and relative to the
    folder of recordings.
    """

    path: str
    offset: int
    data: bytes
    last: bool
    trace: bool = False

    @property
    def nbytes(self) -> int:
        """About how many bytes this report takes in a message."""
        return len(self.data) + len(self.path) + 32


Report = RoleLine | RoleEnded | SavedPiece


class Reports(Message, frozen=True):
    """Reports of an agent, in order. The first one has the number `first`."""

    first: int
    items: tuple[Report, ...]


class EndHost(Message, frozen=True):
    """The run has ended: end all roles, report it, remove the folder of the run, and end."""

    reason: str
