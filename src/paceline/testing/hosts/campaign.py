"""Campaigns on a run with several hosts: hosts are killed, cut off, emptied and added while it trains.

Agents are cut off from their supervisor, roles from the coordinator, and supervisors are killed and replaced.

Each fault waits until every host takes part and every block has its copies. The run then ends by a stop, and its digest
is compared with that of a run on this machine without faults.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

from paceline.config.dials import ALLREDUCE
from paceline.errors import UsageError
from paceline.messages.status import Status
from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.host_cluster import HostCluster, has_hosts
from paceline.testing.hosts.faults import ADOPTION, AGENT_CUT, CUT, DRAIN, JOIN, KILL, LEAVE, ROLE_CUT, Faults
from paceline.testing.hosts.outcome import Outcome
from paceline.testing.hosts.watch import RunWatch

_END_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCampaign:
    """What to do: how many faults of each kind, in which mode. A cut of a whole host lasts `cut_s` seconds.

    Cuts of the agent or of the roles of a host last as long as `partial_cut_s` says, in turn: shorter than an agent's
    term, and longer. With joins or drains, workers and servers follow the hosts; otherwise their number is fixed.
    """

    kills: int = 0
    cuts: int = 0
    leaves: int = 0
    agent_cuts: int = 0
    role_cuts: int = 0
    adoptions: int = 0
    joins: int = 0
    drains: int = 0
    hosts: int = 3
    mode: str = "bsp"
    replicas: int = 1
    cut_s: float = 20.0
    partial_cut_s: tuple[float, ...] = (10.0, 45.0)
    seed: int = 0
    slot_ms: float = 20.0

    def __post_init__(self) -> None:
        if abs(self.joins - self.drains) > 1:
            raise UsageError(f"--joins {self.joins} --drains {self.drains}: they alternate, so give equal numbers")

    def faults(self) -> list[Fault]:
        """The faults in their order. Joins and drains come last, and alternate."""
        rng = random.Random(self.seed)
        kinds = [KILL] * self.kills + [CUT] * self.cuts + [LEAVE] * self.leaves
        kinds += [AGENT_CUT] * self.agent_cuts + [ROLE_CUT] * self.role_cuts + [ADOPTION] * self.adoptions
        rng.shuffle(kinds)
        found = [Fault(kind, rng.choice(self.first), self.cut_s) for kind in kinds]
        for kind in (AGENT_CUT, ROLE_CUT):
            lengths = cycle(self.partial_cut_s)
            found = [replace(fault, lasts_s=next(lengths)) if fault.kind == kind else fault for fault in found]
        return found + list(self._alternating(rng))

    def _alternating(self, rng: random.Random) -> Iterator[Fault]:
        there, away = self.first, [name for name in self.names if name not in self.first]
        for number in range(self.joins + self.drains):
            joins = number % 2 == (0 if self.joins >= self.drains else 1)
            source, target = (away, there) if joins else (there, away)
            host = source.pop(rng.randrange(len(source)))
            target.append(host)
            yield Fault(JOIN if joins else DRAIN, host)

    @property
    def first(self) -> list[str]:
        """The names of the hosts that are there from the start."""
        return self.names[: self.hosts]

    @property
    def names(self) -> list[str]:
        """The names of all hosts."""
        return [chr(ord("a") + number) for number in range(self.hosts + (self.joins > 0))]

    @property
    def words(self) -> list[object]:
        """The options of ``paceline run``."""
        size = ["auto", "per-host"] if self.joins or self.drains else [str(self.hosts)] * 2
        servers: list[object] = ["-s", size[1], "--replicas", self.replicas]
        if self.mode == ALLREDUCE:
            servers = ["--insecure-collective", "--ordered"]
        words = ["-w", size[0], *servers, "--mode", self.mode, "--min-hosts", self.hosts]
        return words + (["--slots", 4] if self.mode in ("bsp", ALLREDUCE) else [])

    def is_whole(self, status: Status, there: Collection[str]) -> bool:
        """Whether each host of `there` takes part, and all copies are there: with all-reduce, in each worker."""
        if self.mode != ALLREDUCE:
            return has_hosts(status, sorted(there), self.replicas)
        placed = status.placement
        whole = sum(sum(held) == placed.blocks for held in placed.servers.values())
        return has_hosts(status, sorted(there), 0) and not placed.building and whole >= (status.wanted_workers or 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a kind on a host; a cut lasts for `lasts_s`."""

    kind: str
    host: str
    lasts_s: float = 0.0

    def __str__(self) -> str:
        cut = f" for {self.lasts_s:.0f} s" if self.kind in (CUT, AGENT_CUT, ROLE_CUT) else ""
        return f"{self.kind} {'' if self.kind == ADOPTION else self.host}".strip() + cut


def play(campaign: HostCampaign, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Play a campaign; `say` is told what happens.

    Raises:
        Stuck: the run did not recover from a fault in time.
    """
    outcome = Outcome()
    # Without servers, whose copies go to a host that returns, a worker goes there because other hosts are crowded.
    cores = 1 if campaign.mode == ALLREDUCE else 2
    with HostCluster(folder, campaign.names, cores=cores) as cluster:
        for host in campaign.first:
            cluster.agent(host)
        places = ["--checkpoints", folder / "checkpoints", "--checkpoint-every", "30s"]
        script = [SCRIPT, "--epochs", 100000, "--slot-ms", campaign.slot_ms]
        cluster.start(*campaign.words, *places, *script)
        with RunWatch(cluster) as watch:
            _inject_all(campaign, cluster, watch, outcome, say)
        outcome.problems += watch.problems
        cluster.stop()
        code = cluster.run.wait(_END_S)
        if code != 0:
            outcome.problems.append(f"the run ended with exit code {code}; see {cluster.run.out}")
            return outcome
    outcome.check(campaign.mode, cluster.run_dir, folder)
    return outcome


def _inject_all(
    campaign: HostCampaign, cluster: HostCluster, watch: RunWatch, outcome: Outcome, say: Callable[[str], None]
) -> None:
    faults, there = Faults(cluster, watch), set(campaign.first)
    before = os.getloadavg()[2]
    for number, fault in enumerate(campaign.faults(), 1):
        status = _ready(campaign, cluster, there)
        say(f"{number}: {fault} at version {status.version}")
        began = time.monotonic()
        pause = faults.inject(fault.kind, fault.host, fault.lasts_s)
        there = there | {fault.host} if fault.kind == JOIN else there - {fault.host} if fault.kind == DRAIN else there
        rewinds = _ready(campaign, cluster, there).rewinds
        outcome.pauses.setdefault(fault.kind, []).append(pause)
        outcome.returns.setdefault(fault.kind, []).append(time.monotonic() - began)
        say(f"{number}: {pause:.2f} s without a commit, whole again after {time.monotonic() - began:.1f} s")
        if rewinds > outcome.rewinds:
            say(f"{number}: rewinds: {rewinds - outcome.rewinds}")
        outcome.rewinds = rewinds
    outcome.load = (before, os.getloadavg()[2])


def _ready(campaign: HostCampaign, cluster: HostCluster, there: Collection[str]) -> Status:
    """Wait until each of the hosts that are `there`, and no other, takes part, and every block has its copies."""

    def reached(status: Status) -> bool:
        others = {process.host for process in status.processes} - set(there)
        whole = campaign.is_whole(status, there)
        return whole and not others and not status.draining_hosts and status.version > 3

    return cluster.until(reached, "all hosts with copies of all blocks", 120.0)
