"""Campaigns on a run with several hosts: hosts are killed, cut off, emptied and added while it trains.

Each fault waits until every host takes part and every block has its copies. The run then ends by a stop, and its digest
is compared with that of a run on this machine without faults.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.messages.status import Status
from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.chaos.launch import finish
from paceline.testing.hosts.cluster import HostCluster, figures, has_hosts

KILL, CUT, LEAVE = "kill", "cut", "leave"
_END_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCampaign:
    """What to do: how many faults of each kind, in which mode. A cut lasts `cut_s` seconds."""

    kills: int = 0
    cuts: int = 0
    leaves: int = 0
    hosts: int = 3
    mode: str = "bsp"
    replicas: int = 1
    cut_s: float = 20.0
    seed: int = 0
    slot_ms: float = 20.0

    def faults(self) -> list[tuple[str, str]]:
        """The faults in their order, each with the name of its host."""
        rng = random.Random(self.seed)
        kinds = [KILL] * self.kills + [CUT] * self.cuts + [LEAVE] * self.leaves
        rng.shuffle(kinds)
        return [(kind, rng.choice(self.names)) for kind in kinds]

    @property
    def names(self) -> list[str]:
        """The names of the hosts."""
        return [chr(ord("a") + number) for number in range(self.hosts)]


@dataclass(slots=True)
class Outcome:
    """What was seen: seconds without a commit after each fault, by kind, and how the run ended."""

    pauses: dict[str, list[float]] = field(default_factory=dict)
    returns: dict[str, list[float]] = field(default_factory=dict)
    rewinds: int = 0
    steps: int = 0
    digest: str = ""
    reference: str = ""
    audit: int | None = None
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The figures for a file."""
        return {
            "pauses": {kind: figures(found) for kind, found in self.pauses.items()},
            "returns": {kind: figures(found) for kind, found in self.returns.items()},
            "rewinds": self.rewinds,
            "steps": self.steps,
            "digest": self.digest,
            "reference": self.reference,
            "audit": self.audit,
            "problems": self.problems,
        }


def play(campaign: HostCampaign, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Play a campaign; `say` is told what happens.

    Raises:
        Stuck: the run did not recover from a fault in time.
    """
    outcome = Outcome()
    with HostCluster(folder, campaign.names) as cluster:
        for host in campaign.names:
            cluster.agent(host)
        words = ["-w", campaign.hosts, "-s", campaign.hosts, "--replicas", campaign.replicas, "--mode", campaign.mode]
        words += ["--min-hosts", campaign.hosts, "--checkpoints", folder / "checkpoints", "--checkpoint-every", "30s"]
        words += ["--slots", 4] if campaign.mode == "bsp" else []
        run = cluster.start(*words, SCRIPT, "--epochs", 100000, "--slot-ms", campaign.slot_ms)
        for number, (kind, host) in enumerate(campaign.faults(), 1):
            status = _ready(campaign, cluster)
            say(f"{number}: {kind} {host} at version {status.version}")
            began = time.monotonic()
            outcome.pauses.setdefault(kind, []).append(_fault(campaign, cluster, kind, host))
            _ready(campaign, cluster)
            outcome.returns.setdefault(kind, []).append(time.monotonic() - began)
        outcome.rewinds = _ready(campaign, cluster).rewinds
        cluster.stop()
        code = run.wait(_END_S)
        if code != 0:
            outcome.problems.append(f"the run ended with exit code {code}; see {run.out}")
            return outcome
    summary = json.loads(cluster.run_dir.summary_file.read_text())
    outcome.steps, outcome.digest = summary["steps"], summary["digest"]
    outcome.audit = finish(["audit", cluster.run_dir.path], folder / "audit.txt", {}, _END_S).code
    if outcome.audit != 0:
        outcome.problems.append("the audit is not clean")
    if outcome.rewinds:
        outcome.problems.append(f"{outcome.rewinds} rewinds")
    if campaign.mode == "bsp":
        outcome.reference = _reference(outcome.steps, folder)
        if outcome.reference != outcome.digest:
            outcome.problems.append("the digest is not that of a run without faults")
    return outcome


def _ready(campaign: HostCampaign, cluster: HostCluster) -> Status:
    def reached(status: Status) -> bool:
        return has_hosts(status, campaign.names, campaign.replicas) and status.version > 3

    return cluster.until(reached, "all hosts with copies of all blocks", 120.0)


def _fault(campaign: HostCampaign, cluster: HostCluster, kind: str, host: str) -> float:
    """Inject a fault; returns the longest time without a commit."""
    if kind == KILL:
        cluster.kill(host)
        pause = _longest_pause(cluster, 6.0)
        cluster.agent(host)
    elif kind == CUT:
        with cluster.cut(host):
            pause = _longest_pause(cluster, campaign.cut_s)
        pause = max(pause, _longest_pause(cluster, 3.0))
    else:
        cluster.terminate(host)
        pause = _longest_pause(cluster, 8.0)
        deadline = time.monotonic() + 60.0
        while cluster.agent_code(host) is None and time.monotonic() < deadline:
            pause = max(pause, _longest_pause(cluster, 1.0))
        cluster.agent(host)
        pause = max(pause, _longest_pause(cluster, 5.0))
    return pause


def _longest_pause(cluster: HostCluster, seconds: float) -> float:
    """The longest time between two commits, or since the last one, within the next `seconds`."""
    began = last = time.monotonic()
    version, longest = -1, 0.0
    while (now := time.monotonic()) < began + seconds:
        status = cluster.status()
        now = time.monotonic()
        if status is not None and status.version > version:
            version, last, longest = status.version, now, max(longest, now - last)
        longest = max(longest, now - last)
        time.sleep(0.01)
    return longest


def _reference(steps: int, folder: Path) -> str:
    """The digest after so many steps of a run on this machine without faults."""
    where = folder / "reference"
    words = ["run", "--dir", where, "-w", 1, "-s", 1, "--slots", 4, "--checkpoint-every", "0", "--max-steps", steps]
    finish([*words, SCRIPT, "--epochs", 100000, "--slot-ms", 0], folder / "reference.txt", {}, 3600.0)
    digest: str = json.loads((where / "summary.json").read_text())["digest"]
    return digest
