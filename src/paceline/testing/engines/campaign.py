"""Campaigns on a run that a cluster carries: nodes are killed and added while it trains.

Each fault waits until every node carries roles and every block has its copies. The run then ends by a stop, and its
digest is compared with that of a run on this machine without faults.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paceline.messages.status import Status
from paceline.runtime.roles import SERVER
from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.engines.cluster import EngineCluster
from paceline.testing.engines.followed_run import FollowedRun
from paceline.testing.host_cluster import has_hosts
from paceline.testing.hosts.outcome import Outcome
from paceline.testing.launch import segments

KILL, ADD = "kill", "add"
_END_S = 120.0
_WHOLE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCampaign:
    """How many nodes are killed and added, in which mode. The cluster has `nodes` nodes at the start.

    A node that is killed is replaced if fewer than that are left.
    """

    kills: int = 0
    adds: int = 0
    nodes: int = 3
    mode: str = "bsp"
    seed: int = 0
    replicas: int = 1
    slot_ms: float = 20.0

    def faults(self) -> list[str]:
        """The kinds of the faults, in their order."""
        kinds = [KILL] * self.kills + [ADD] * self.adds
        random.Random(self.seed).shuffle(kinds)
        return kinds

    @property
    def words(self) -> list[object]:
        """The options of ``paceline run``, and the script."""
        words: list[object] = ["-w", "auto", "-s", "per-host", "--replicas", self.replicas, "--mode", self.mode]
        words += ["--min-hosts", self.nodes, "--checkpoint-every", "30s"]
        words += ["--slots", 4] if self.mode == "bsp" else []
        return [*words, SCRIPT, "--epochs", 100000, "--slot-ms", self.slot_ms]


def play(campaign: EngineCampaign, cluster: EngineCluster, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Play a campaign on `cluster`, which is started and closed; `say` is told what happens.

    Raises:
        Stuck: the run did not recover from a fault in time.
    """
    outcome, before = Outcome(), segments()
    os.environ["PACELINE_CACHE"] = str(folder / "cache")  # for the launcher, and for the agents on the nodes
    try:
        options = cluster.start(campaign.nodes)
        run = FollowedRun(folder, [*options, "--checkpoints", folder / "checkpoints", *campaign.words], {})
        try:
            _inject_all(campaign, cluster, run, outcome, say)
            code = run.stop(_END_S)
        finally:
            run.close()
    finally:
        cluster.close()
    if code != 0:
        outcome.problems.append(f"the run ended with exit code {code}; see {run.launched.out}")
        return outcome
    if left := segments() - before:
        outcome.problems.append(f"shared memory is left: {', '.join(sorted(left))}")
    outcome.check(campaign.mode, run.dir, folder)
    return outcome


def _inject_all(
    campaign: EngineCampaign, cluster: EngineCluster, run: FollowedRun, outcome: Outcome, say: Callable[[str], None]
) -> None:
    rng = random.Random(campaign.seed)
    for number, kind in enumerate(campaign.faults(), 1):
        status = _whole(campaign, cluster, run)
        began, version = time.monotonic(), status.version
        run.pause()
        if kind == ADD:
            say(f"{number}: add {cluster.add()} at version {version}")
        else:
            node = rng.choice(sorted(cluster.nodes()))
            say(f"{number}: kill {node} at version {version}")
            cluster.kill(node)
            run.until(partial(_without, node), f"the loss of node {node}")
            if len(cluster.nodes()) < campaign.nodes:
                cluster.add()
        outcome.rewinds = _whole(campaign, cluster, run).rewinds
        pause, whole = run.pause(), time.monotonic() - began
        outcome.pauses.setdefault(kind, []).append(pause)
        outcome.returns.setdefault(kind, []).append(whole)
        say(f"{number}: {pause:.2f} s without a commit, whole again after {whole:.1f} s, rewinds: {outcome.rewinds}")


def _carries(node: str, host: str) -> bool:
    """Whether the name of a host has that of a node as a whole word: executor-1-1 is not executor-1-12."""
    return re.search(rf"\b{re.escape(node)}\b", host) is not None


def _without(node: str, status: Status) -> bool:
    return not any(_carries(node, process.host) for process in status.processes)


def _whole(campaign: EngineCampaign, cluster: EngineCluster, run: FollowedRun) -> Status:
    """Wait until each node, and no other host, carries roles, all servers are there, and every block has its copies.

    Copies count only if servers are on several hosts: while the others are not back, all of them may be on one.
    """

    def reached(status: Status) -> bool:
        nodes = cluster.nodes()
        known = all(any(_carries(node, process.host) for node in nodes) for process in status.processes)
        servers = [process.host for process in status.processes if process.role == SERVER.name]
        carrying = all(any(_carries(node, process.host) for process in status.processes) for node in nodes)
        spread = len(servers) == len(nodes) and len(set(servers)) > 1
        return known and carrying and spread and has_hosts(status, [], campaign.replicas) and status.version > 3

    return run.until(reached, "all nodes and servers, and copies of all blocks", _WHOLE_S)
