"""The interface between the supervisor and the processes of a run: `LocalRunner`, or `HostRunner` for several hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.config.role_spec import RoleSpec
from paceline.core.hosts.choice import HostLoad
from paceline.engines.fork_client import ServerEnd
from paceline.engines.output import Exit, Line
from paceline.messages.hosts import RunningRole
from paceline.runtime.roles import Role


@dataclass(frozen=True, slots=True)
class HostJoined:
    """A host takes part; `note` says what it offers."""

    host: str
    note: str


@dataclass(frozen=True, slots=True)
class HostGone:
    """A host does not take part any more. The `Exit` of each of its `roles` follows. With `lost`, it did not leave."""

    host: str
    reason: str
    lost: bool = True
    roles: tuple[RunningRole, ...] = ()


@dataclass(frozen=True, slots=True)
class HostLeaves:
    """A host was told to leave, or shall be emptied."""

    host: str


@dataclass(frozen=True, slots=True)
class Note:
    """A text for the user."""

    text: str
    warning: bool = False


RunnerEvent = Line | Exit | HostJoined | HostGone | HostLeaves | Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a role runs: the name and address of its host, and its directories there.

    `code_root` is the copy of the directory from which the script imports its own modules; None if the host sees the
    paths of this machine. `saves` says that files which the script saves are returned to the launcher. The host has so
    many `cores`, and so many `workers` of the run.
    """

    host_name: str
    address: str
    run: str
    code_root: str | None = None
    saves: bool = False
    cores: int = 1
    workers: int = 1


Order = Callable[[Place | None], RoleSpec]
"""Makes the configuration of a role for the place where it will run; None is this machine."""


class RunningProcess(Protocol):
    """A process that runs."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def start(self) -> int:
        """The number of its start."""
        ...


class RoleRunner(Protocol):
    """Starts, signals and ends the processes of a run. Only the thread of the supervisor calls it."""

    def warm(self) -> None:
        """Prepare to start roles quickly."""
        ...

    def fork_server_ended(self) -> ServerEnd | None:
        """How the fork server of this machine ended, if it did; told once."""
        ...

    def has_room(self, name: str) -> bool:
        """Whether the process called `name` can be started now; if not, ask again later."""
        ...

    def start(self, name: str, start: int, order: Order) -> None:
        """Start a process for which there is room. A name may be started again after its `Exit`."""
        ...

    def signal(self, name: str, number: int, *, group: bool = False) -> None:
        """Send a signal to a process, or to its whole process group. Does nothing if the process has ended."""
        ...

    def alive(self, role: Role | None = None) -> Sequence[RunningProcess]:
        """The processes that run: those of `role`, or all of them."""
        ...

    def next_event(self, timeout_s: float) -> RunnerEvent | None:
        """The next event; None if none comes within `timeout_s`. An `Exit` follows the last line of its process."""
        ...

    def gather(self, show: Callable[[str], None], check: Callable[[], None] = lambda: None) -> dict[str, int]:
        """Wait until there are enough hosts to begin. Returns the start numbers of the roles that run, by name.

        `show` is told what is awaited. `check` is called several times a second; what it raises ends the wait.
        """
        ...

    def want(self, workers: int, servers: int) -> None:
        """Take note of how many workers and servers the run shall have, so that hosts for them can be brought."""
        ...

    def has_host(self, host: str) -> bool:
        """Whether a host of that name takes part."""
        ...

    def roles_on(self, host: str) -> list[str]:
        """The names of the processes on a host."""
        ...

    def capacity(self) -> list[HostLoad]:
        """The load of each host that can take roles; empty if there is only this machine."""
        ...

    def drain(self, host: str, *, undo: bool = False) -> None:
        """Start no more processes on `host`; with `undo`, start processes there again."""
        ...

    def dismiss(self, host: str) -> None:
        """Let a host go that has no processes any more."""
        ...

    def saw(self, members: set[tuple[str, int]]) -> None:
        """Take note of the (name, start) of each process that the coordinator counts as a member, in a new status."""
        ...

    def end(self, patience_s: float = 1.0, *, at_once: Callable[[Role], bool] = lambda role: False) -> None:
        """End all processes: by SIGTERM and, after `patience_s`, by SIGKILL; at once where `at_once` is true."""
        ...
