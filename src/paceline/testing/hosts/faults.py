"""The faults of a campaign on hosts. Each is injected and undone, and returns the longest time without a commit.

The return of a host is a part of its fault: a machine comes back, a service starts its agent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from paceline.testing.host_cluster import HostCluster, Stuck
from paceline.testing.hosts.watch import RunWatch

KILL, CUT, LEAVE = "kill", "cut", "leave"
AGENT_CUT, ROLE_CUT, ADOPTION = "agent cut", "role cut", "adoption"
JOIN, DRAIN = "join", "drain"

_LEAVE_S = 60.0
_ADOPT_S = 60.0


class Faults:
    """Injects faults into the run of `cluster`, which `watch` looks at. `lasts_s` is the length of a cut."""

    def __init__(self, cluster: HostCluster, watch: RunWatch) -> None:
        self._cluster = cluster
        self._watch = watch

    def inject(self, kind: str, host: str, lasts_s: float) -> float:
        """Inject a fault of that kind; returns the longest time without a commit."""
        known: dict[str, Callable[[str, float], float]] = {
            KILL: self._kill,
            CUT: self._cut,
            LEAVE: self._leave,
            AGENT_CUT: self._agent_cut,
            ROLE_CUT: self._role_cut,
            ADOPTION: self._adoption,
            JOIN: self._join,
            DRAIN: self._drain,
        }
        self._watch.split = kind == CUT  # until the next fault: the host may need some time to end what was replaced
        return known[kind](host, lasts_s)

    def _kill(self, host: str, _: float) -> float:
        self._cluster.kill(host)
        pause = self._watch.longest_pause(6.0)
        self._cluster.agent(host)
        return pause

    def _cut(self, host: str, lasts_s: float) -> float:
        return self._during(self._cluster.cut(host), lasts_s, 3.0)

    def _agent_cut(self, host: str, lasts_s: float) -> float:
        return self._partial_cut(self._cluster.cut_agent(host), host, lasts_s)

    def _role_cut(self, host: str, lasts_s: float) -> float:
        return self._partial_cut(self._cluster.cut_roles(host), host, lasts_s)

    def _partial_cut(self, cut: AbstractContextManager[None], host: str, lasts_s: float) -> float:
        pause = self._during(cut, lasts_s, 1.0)
        if self._cluster.agent_code(host) is not None:  # its term had passed
            self._cluster.agent(host)
        return max(pause, self._watch.longest_pause(3.0))

    def _during(self, cut: AbstractContextManager[None], lasts_s: float, after_s: float) -> float:
        with cut:
            pause = self._watch.longest_pause(lasts_s)
        return max(pause, self._watch.longest_pause(after_s))

    def _leave(self, host: str, _: float) -> float:
        self._cluster.terminate(host)
        pause = max(self._watch.longest_pause(8.0), self._until_left(host))
        self._cluster.agent(host)
        return max(pause, self._watch.longest_pause(5.0))

    def _drain(self, host: str, _: float) -> float:
        if self._cluster.drain(host) != 0:
            raise Stuck(f"`paceline drain` failed: {(self._cluster.folder / 'drain.txt').read_text()}")
        return max(self._until_left(host), self._watch.longest_pause(2.0))

    def _until_left(self, host: str) -> float:
        """Wait for the end of a host's agent; returns the longest time without a commit.

        Raises:
            Stuck: the host is not empty in time.
        """
        pause, deadline = 0.0, time.monotonic() + _LEAVE_S
        while self._cluster.agent_code(host) is None:
            if time.monotonic() > deadline:
                raise Stuck(f"host {host} was not empty within {_LEAVE_S:.0f} s")
            pause = max(pause, self._watch.longest_pause(1.0))
        return pause

    def _join(self, host: str, _: float) -> float:
        self._cluster.agent(host)
        return self._watch.longest_pause(8.0)

    def _adoption(self, _: str, __: float) -> float:
        """Kill the supervisor, and adopt its run at once."""
        before = self._watch.status()
        began = time.monotonic()
        self._cluster.kill_supervisor()
        self._cluster.forget()
        self._cluster.adopt()
        version = -1 if before is None else before.version
        self._cluster.until(lambda status: status.version > version, "a commit after the adoption", _ADOPT_S)
        return max(time.monotonic() - began, self._watch.longest_pause(4.0))
