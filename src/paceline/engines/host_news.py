"""Decides what follows when hosts come, leave or are lost. The supervisor carries out the actions."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.hosts.choice import crowded_host, worker_count
from paceline.engines.actions import Action, Rescale, Tell, Terminate
from paceline.engines.coordinator_client import CoordinatorClient
from paceline.engines.decisions import Decisions
from paceline.engines.host_options import HostOptions
from paceline.engines.role_runner import HostGone, HostJoined, HostLeaves, Note, RoleRunner
from paceline.messages.status import Status
from paceline.runtime.roles import WORKER, role_of

_MOVE_S = 10.0  # seconds between two moves of workers: the first must have begun to work


class HostNews:
    """Tells the coordinator and the user of each change of the hosts, and keeps ``-w auto`` and ``per-host``."""

    def __init__(
        self,
        options: HostOptions | None,
        replicas: int,
        runner: RoleRunner,
        client: CoordinatorClient,
        decisions: Decisions,
    ) -> None:
        self._options = options
        self._replicas = replicas
        self._runner = runner
        self._client = client
        self._decisions = decisions
        # Hosts that are being emptied, each with whether a status has said so: the coordinator learns it a bit later.
        self._leaving: dict[str, bool] = {}
        self._next_move = 0.0

    def handle(self, event: HostJoined | HostGone | HostLeaves | Note) -> Iterator[Action]:
        """The actions that an event calls for."""
        match event:
            case Note(text=text, warning=warning):
                yield Tell(text, warning=warning)
            case HostJoined(note=note):
                yield Tell(note)
            case HostGone(host=host, reason=reason, lost=True):
                self._client.host_lost(host, reason)
                yield Tell(f"host {host} is lost: {reason}", warning=True)
            case HostGone(host=host, reason=reason):
                self._client.drain(host, undo=True)  # if the host returns, it takes part again
                yield Tell(f"host {host} has left: {reason}")
            case HostLeaves(host=host):
                self._client.drain(host)
                yield from self._empty(host)

    def saw(self, status: Status, now: float, *, resizable: bool) -> Iterator[Action]:
        """The actions that a new status calls for: hosts that shall be emptied, and hosts that are empty now."""
        for host in [host for host, said in self._leaving.items() if said and host not in status.draining_hosts]:
            del self._leaving[host]
            self._runner.drain(host, undo=True)
        for host in status.draining_hosts:
            if host not in self._leaving and self._runner.has_host(host):
                yield from self._empty(host)
            self._leaving[host] = True
        for host in status.drained_hosts:
            if not self._runner.roles_on(host):
                self._runner.dismiss(host)
        if resizable:
            yield from self._resize()
            yield from self._even_out(now)

    def _even_out(self, now: float) -> Iterator[Action]:
        """Move a worker from a crowded host to one with a free core: a host has joined or returned."""
        if self._decisions.waiting or now < self._next_move:
            return
        self._next_move = now + _MOVE_S
        host = crowded_host(self._runner.capacity())
        workers = [name for name in self._runner.roles_on(host or "") if role_of(name) is WORKER]
        if workers:
            self._decisions.move(workers[-1])
            yield Tell(f"{workers[-1]} moves from host {host}, which has more roles than cores")
            yield Terminate(workers[-1])

    def _empty(self, host: str) -> Iterator[Action]:
        self._leaving.setdefault(host, False)
        self._runner.drain(host)
        names = self._runner.roles_on(host)
        yield Tell(f"host {host} is being emptied: {', '.join(names) or 'no roles'} move to other hosts")
        for name in names:
            if role_of(name) is WORKER:
                self._decisions.move(name)
                yield Terminate(name)

    def size(self) -> tuple[int, int]:
        """How many workers and servers the run shall have on the hosts that are there."""
        workers, servers = self._decisions.workers.target, self._decisions.servers.target
        hosts = self._runner.capacity()
        if self._options is None or not hosts:
            return workers, servers
        if self._options.servers_per_host:
            servers = max(len(hosts), self._replicas + 1)
        if self._options.auto_workers:
            workers = worker_count(hosts, servers)
        return workers, servers

    def _resize(self) -> Iterator[Action]:
        wanted = self.size()
        if wanted != (self._decisions.workers.target, self._decisions.servers.target):
            yield Rescale(*wanted)
