"""A runner of processes that are entries of a dict: the one class that a new way to run processes needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from paceline.core.hosts.choice import HostLoad
from paceline.engines.fork_client import ServerEnd
from paceline.engines.output import Exit
from paceline.engines.role_runner import Order, RunnerEvent
from paceline.messages.hosts import RunningRole
from paceline.runtime.roles import Role, role_of


class DummyRunner:
    """A `RoleRunner` without processes. `told` has what it was asked to do with hosts, `hosts` the roles on each."""

    def __init__(self) -> None:
        self.wanted: tuple[int, int] | None = None
        self.running: dict[str, int] = {}
        self.events: deque[RunnerEvent] = deque()
        self.loads: list[HostLoad] = []
        self.hosts: dict[str, list[str]] = {}
        self.told: list[tuple[str, object]] = []

    def warm(self) -> None:
        """Do nothing."""

    def fork_server_ended(self) -> ServerEnd | None:
        """Return None: there is no fork server."""
        return None

    def has_room(self, name: str) -> bool:
        """Return True."""
        return True

    def start(self, name: str, start: int, order: Order) -> None:
        """Note the start."""
        order(None)
        self.running[name] = start

    def signal(self, name: str, number: int, *, group: bool = False) -> None:
        """End the process."""
        if (start := self.running.pop(name, None)) is not None:
            self.events.append(Exit(name, start, -number))

    def alive(self, role: Role | None = None) -> Sequence[RunningRole]:
        """Return what was started and has not ended."""
        return [RunningRole(n, s) for n, s in self.running.items() if role is None or role_of(n) is role]

    def next_event(self, timeout_s: float) -> RunnerEvent | None:
        """Return the next event."""
        return self.events.popleft() if self.events else None

    def gather(self, show: Callable[[str], None], check: Callable[[], None] = lambda: None) -> dict[str, int]:
        """Return what runs already."""
        return dict(self.running)

    def want(self, workers: int, servers: int) -> None:
        self.wanted = (workers, servers)

    def has_host(self, host: str) -> bool:
        """Return whether `hosts` has it."""
        return host in self.hosts

    def roles_on(self, host: str) -> list[str]:
        """Return the roles in `hosts`."""
        return self.hosts.get(host, [])

    def capacity(self) -> list[HostLoad]:
        """Return `loads`."""
        return self.loads

    def drain(self, host: str, *, undo: bool = False) -> None:
        """Note it."""
        self.told.append(("undo" if undo else "drain", host))

    def dismiss(self, host: str) -> None:
        """Note it."""
        self.told.append(("dismiss", host))

    def saw(self, members: set[tuple[str, int]]) -> None:
        """Note it."""
        self.told.append(("saw", members))

    def end(self, patience_s: float = 1.0, *, at_once: Callable[[Role], bool] = lambda role: False) -> None:
        """End everything."""
        for name in list(self.running):
            self.signal(name, 9 if at_once(role_of(name)) else 15)
