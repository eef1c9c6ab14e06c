"""Decides what follows when hosts come, leave or are lost. The supervisor carries out the actions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from paceline.core.hosts.choice import crowded_host, host_of_spare_server, worker_count
from paceline.engines.actions import Action, Rescale, Tell, Terminate
from paceline.engines.coordinator_client import CoordinatorClient
from paceline.engines.decisions import Decisions
from paceline.engines.host_options import HostOptions
from paceline.engines.role_runner import HostGone, HostJoined, HostLeaves, Note, RoleRunner
from paceline.messages.status import Status
from paceline.runtime.roles import SAMPLER, SERVER, WORKER, Role, role_of

_MOVE_S = 10.0  # seconds between two moves: the first role must have begun to work


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
        # Hosts that are being emptied, and why hosts stay that were told to leave.
        self._leaving: set[str] = set()
        self._stays: dict[str, str] = {}
        self._next_move = 0.0
        self._scaled = False  # a user has said how many samplers there shall be

    def handle(self, event: HostJoined | HostGone | HostLeaves | Note) -> Iterator[Action]:
        """The actions that an event calls for."""
        match event:
            case Note(text=text, warning=warning):
                yield Tell(text, warning=warning)
            case HostJoined(note=note):
                yield Tell(note)
            case HostGone(host=host, reason=reason, lost=True, roles=roles):
                self._client.host_lost(host, reason, ((role.name, role.start) for role in roles))
                yield Tell(f"host {host} is lost: {reason}", warning=True)
            case HostGone(host=host, reason=reason):
                self._client.drain(host, undo=True)  # if the host returns, it takes part again
                yield Tell(f"host {host} has left: {reason}")
            case HostLeaves(host=host):
                yield from self._leave(host)

    def adopted(self, starts: Mapping[str, int], adopted: Collection[str]) -> None:
        """Report the roles of an adopted run that have not returned: a restarted coordinator would wait for them.

        `starts` has the number of the last start of each name.
        """
        gone = {name: start for name, start in starts.items() if name not in adopted and role_of(name).reported}
        if gone:
            self._client.host_lost("", "it did not return after the supervisor was replaced", gone.items())

    def _leave(self, host: str) -> Iterator[Action]:
        """Ask the coordinator to empty a host that was told to leave. `saw` empties it when the coordinator agrees."""
        if not self._runner.roles_on(host):
            self._runner.dismiss(host)
        elif any(load.name != host for load in self._runner.capacity()):
            self._client.drain(host)
        else:
            yield from self._stay(host, "no other host can take its roles; add one")

    def _stay(self, host: str, why: str) -> Iterator[Action]:
        """Let a host that was told to leave take roles again. Its agent repeats the notice, so it is asked again."""
        self._runner.drain(host, undo=True)
        if self._stays.get(host) != why:
            self._stays[host] = why
            text = f"host {host} was told to leave, and stays: {why}. A second signal to its agent ends it at once"
            yield Tell(text, warning=True)

    def saw(self, status: Status, now: float, *, resizable: bool) -> Iterator[Action]:
        """The actions that a new status calls for: hosts that shall be emptied, and hosts that are empty now."""
        for host in sorted(self._leaving.difference(status.draining_hosts)):
            self._leaving.discard(host)
            self._runner.drain(host, undo=True)
        for host, why in self._client.refused_drains().items():
            yield from self._stay(host, why)
        for host in status.draining_hosts:
            self._stays.pop(host, None)
            if host not in self._leaving and self._runner.has_host(host):
                yield from self._empty(host)
            self._leaving.add(host)
        for host in status.drained_hosts:
            if not self._runner.roles_on(host):
                self._runner.dismiss(host)
        self._scaled |= status.wanted_samplers is not None
        if resizable:
            yield from self._resize()
            yield from self._even_out(status, now)

    def _even_out(self, status: Status, now: float) -> Iterator[Action]:
        """Move a role to a host that has joined or returned.

        A server moves if all copies are on too few hosts, a worker if its host has more roles than cores. A server is
        only ended while every block has all its copies.
        """
        if self._decisions.waiting or now < self._next_move:
            return
        self._next_move = now + _MOVE_S
        loads, placed = self._runner.capacity(), status.placement
        whole = placed.blocks > 0 and not placed.short and not placed.building
        if self._replicas and whole and (host := host_of_spare_server(loads, self._replicas)) is not None:
            yield from self._move(SERVER, host, "so that copies are on different hosts")
        elif (host := crowded_host(loads)) is not None:
            yield from self._move(WORKER, host, "which has more roles than cores")

    def _move(self, role: Role, host: str, why: str) -> Iterator[Action]:
        """End the newest process of `role` on `host`; it is started again on another host."""
        names = [name for name in self._runner.roles_on(host) if role_of(name) is role]
        if names:
            self._decisions.move(names[-1])
            yield Tell(f"{names[-1]} moves from host {host}, {why}")
            yield Terminate(names[-1])

    def _empty(self, host: str) -> Iterator[Action]:
        self._runner.drain(host)
        names = self._runner.roles_on(host)
        yield Tell(f"host {host} is being emptied: {', '.join(names) or 'no roles'} move to other hosts")
        for name in names:
            if role_of(name) in (WORKER, SAMPLER):
                self._decisions.move(name)
                yield Terminate(name)

    def size(self) -> tuple[int, int]:
        """How many workers and servers the run shall have on the hosts that are there."""
        workers, servers = self._decisions.workers.target, self._decisions.servers.target
        hosts = self._runner.capacity()
        if self._options is None or not hosts:
            return workers, servers
        if self._options.servers_per_host and servers:  # with all-reduce there are none, whatever the run had before
            servers = max(len(hosts), self._replicas + 1)
        if self._options.auto_workers:
            workers = worker_count(hosts, servers)
        return workers, servers

    def _resize(self) -> Iterator[Action]:
        wanted = self.size()
        if wanted != (self._decisions.workers.target, self._decisions.servers.target):
            yield Rescale(*wanted)
        if self._options is not None and self._options.samplers_per_host and not self._scaled:
            yield from self._decisions.resize_samplers(len(self._runner.capacity()))
