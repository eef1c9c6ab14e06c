"""Cuts of the network between processes of a run."""

from __future__ import annotations

import time

from paceline.testing.chaos.cuts import COORDINATOR, Cut, choose
from paceline.testing.chaos.plan import Planned
from paceline.testing.chaos.recovery import Recovering
from paceline.testing.chaos.target import Target
from paceline.testing.chaos.watch import Process, Seen
from paceline.testing.host_cluster import SUPERVISOR

_LOOK_S = 0.02  # seconds between two statuses that are read during a cut


class NetworkFaults:
    """Cuts the network of one run for a while, and waits until the run has recovered."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = target.run
        self._figures = target.figures

    def cut(self, planned: Planned) -> None:
        """Cut the network and wait for the recovery. The time of the recovery counts from the end of the cut."""
        cluster = self._run.cluster
        assert cluster is not None
        before = self._run.until(_is_spread, "a host for each role")
        cut = _choose(planned, before)
        hosts = {p.name: p.host for p in before.processes.values()} | {COORDINATOR: SUPERVISOR}
        self._run.screen.note(f"{cut} at version {before.version}")
        self._figures.fire(planned.fault)
        at = time.monotonic()
        during = Recovering(planned.fault, at, before, None, 0, 0)
        try:
            for lasts_s, ways in cut.phases:
                cluster.close_ways({(hosts[one], hosts[other]) for one, other in ways})
                at += lasts_s
                self._watch_until(at, during)
        finally:
            cluster.close_ways(())
        self._figures.paused(str(planned.fault), during.pause_s)
        seen = self._target.status()
        self._target.wait(self._target.recovering(planned.fault, time.monotonic(), seen))

    def _watch_until(self, at: float, recovery: Recovering) -> None:
        while time.monotonic() < at:
            if (seen := self._run.look()) is not None:
                recovery.see(seen)
            time.sleep(_LOOK_S)


def _choose(planned: Planned, seen: Seen) -> Cut:
    servers = [p.name for p in seen.of_role("server")]
    workers = [p.name for p in _own_workers(seen)]
    return choose(planned.fault.role, planned.draw, planned.span, servers, workers)


def _own_workers(seen: Seen) -> list[Process]:
    """The workers without those that have joined, which run on the supervisor's host."""
    return [p for p in seen.of_role("worker") if not p.name.startswith("worker-j")]


def _is_spread(seen: Seen) -> bool:
    """Whether no two roles that may be cut share a host: a cut between hosts is then one between roles."""
    hosts = [p.host for p in (*seen.of_role("server"), *_own_workers(seen))]
    return len(set(hosts)) == len(hosts)
