"""Runs all processes of a run on this machine, as children of the launcher."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from paceline.core.hosts.choice import HostLoad
from paceline.engines.fork_client import ServerEnd
from paceline.engines.output import Exit, Line
from paceline.engines.processes import Child, Children
from paceline.engines.role_runner import Order
from paceline.runtime.roles import Role, role_of
from paceline.runtime.rundir import RunDir


class LocalRunner:
    """A `RoleRunner` for this machine. Scripts run in `cwd`, with `env` for variables that the environment lacks."""

    def __init__(self, run: RunDir, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        self.children = Children(run)
        self._cwd = cwd
        self._env = env

    def warm(self) -> None:
        """See `RoleRunner.warm`: start the fork server."""
        self.children.warm()

    def fork_server_ended(self) -> ServerEnd | None:
        """See `RoleRunner.fork_server_ended`."""
        return self.children.fork_server_ended()

    def has_room(self, name: str) -> bool:
        """Return True: this machine takes any number of processes."""
        return True

    def start(self, name: str, start: int, order: Order) -> None:
        """See `RoleRunner.start`."""
        if role_of(name).scripted:
            self.children.start(order(None), cwd=self._cwd, defaults=self._env)
        else:
            self.children.start(order(None))

    def signal(self, name: str, number: int, *, group: bool = False) -> None:
        """See `RoleRunner.signal`."""
        if (child := self.children.children.get(name)) is not None:
            child.signal(signal.Signals(number), group=group)

    def alive(self, role: Role | None = None) -> list[Child]:
        """See `RoleRunner.alive`."""
        return self.children.alive(role)

    def next_event(self, timeout_s: float) -> Line | Exit | None:
        """See `RoleRunner.next_event`."""
        try:
            return self.children.events.get(block=timeout_s > 0, timeout=timeout_s or None)
        except queue.Empty:
            return None

    def gather(self, show: Callable[[str], None], check: Callable[[], None] = lambda: None) -> dict[str, int]:
        """Return at once: this machine is there."""
        check()
        return {}

    def want(self, workers: int, servers: int) -> None:
        """See `RoleRunner.want`: this machine is there anyway."""

    def has_host(self, host: str) -> bool:
        """Return False: there are no hosts to name."""
        return False

    def roles_on(self, host: str) -> list[str]:
        """Return nothing: there are no hosts to name."""
        return []

    def capacity(self) -> list[HostLoad]:
        """Return nothing: there are no hosts to name."""
        return []

    def drain(self, host: str, *, undo: bool = False) -> None:
        """Do nothing: there are no hosts to name."""

    def dismiss(self, host: str) -> None:
        """Do nothing: there are no hosts to name."""

    def saw(self, members: set[tuple[str, int]]) -> None:
        """Do nothing: this process sees the ends of its children itself."""

    def end(self, patience_s: float = 1.0, *, at_once: Callable[[Role], bool] = lambda role: False) -> None:
        """See `RoleRunner.end`."""
        self.children.end(patience_s, at_once=at_once)
