"""Chooses the host on which a role is started. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WAITS_S = 30.0
"""Seconds that a role waits for a host with a free core before it is started on a host without one.

Meanwhile the run goes on: blocks have copies on other servers, and slots go to other workers.
"""


@dataclass(frozen=True, slots=True)
class HostLoad:
    """A host that takes part and is not being emptied, with the number of its cores and of the roles on it."""

    name: str
    cores: int
    workers: int = 0
    servers: int = 0
    samplers: int = 0

    @property
    def free(self) -> int:
        """Cores without a role; negative if there are more roles than cores."""
        return self.cores - self.workers - self.servers - self.samplers


def choose_host(role: str, hosts: Sequence[HostLoad], waited_s: float, *, may_wait: bool = True) -> str | None:
    """Return the name of the host for a process of `role`, None if it must wait for a host with a free core.

    Servers go to the host with the fewest servers, so that the copies of a block have hosts of their own; samplers to
    the host with the fewest samplers, so that each host has one. Workers go to the host with the most free cores. A
    role that replaces one of a lost host waits for a while, since that host may return; with `may_wait` false, as at
    the start of a run, it does not.
    """
    if not hosts:
        return None
    roomy = [host for host in hosts if host.free > 0]
    if not roomy and may_wait and waited_s < WAITS_S:
        return None
    if role == "sampler":
        return min(hosts, key=lambda h: (h.samplers, -h.free, h.name)).name
    if role == "server":
        return min(hosts, key=lambda h: (h.servers, -h.free, h.name)).name
    return min(roomy or hosts, key=lambda h: (-h.free / h.cores, h.workers, h.name)).name


def crowded_host(hosts: Sequence[HostLoad]) -> str | None:
    """Return the host from which a worker should move, because it has too few cores and another host has a free one."""
    crowded = min((host for host in hosts if host.free < 0 and host.workers), key=lambda h: h.free, default=None)
    return crowded.name if crowded is not None and any(host.free > 0 for host in hosts) else None


def host_of_spare_server(hosts: Sequence[HostLoad], replicas: int) -> str | None:
    """Return the host from which a server should move, so that the copies of a block can be on different hosts.

    None if enough hosts have a server for `replicas` copies, or no host is without one.
    """
    serving = [host for host in hosts if host.servers]
    if len(serving) > replicas or len(serving) == len(hosts):
        return None
    most = max(serving, key=lambda h: (h.servers, h.name), default=None)
    return most.name if most is not None and most.servers > 1 else None


def worker_count(hosts: Sequence[HostLoad], servers: int) -> int:
    """How many workers ``-w auto`` means: one for each core of `hosts` that has no server."""
    return max(1, sum(host.cores for host in hosts) - servers)
