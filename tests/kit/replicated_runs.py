"""Real runs with three servers and one backup of each block, whose servers a test kills."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.kit.real_runs import PACELINE, TRAIN_CASE, Live, Trained, live, run, trained_in

from paceline.messages.status import Status

REPLICATED = ["--seed", "7", "-w", "2", "-s", "3", "--replicas", "1"]
PATIENT = {"PACELINE_HEARTBEAT_TIMEOUT_S": "28"}
"""The environment of runs whose servers are killed: a wait for silence takes much longer than a failover."""


def is_whole(status: Status) -> bool:
    """Return whether the blocks are placed, every block has all its copies, and every server takes part."""
    return status.placement.blocks > 0 and status.placement.short == 0 and len(status.servers) == 3


def kill_servers(running: Live, kills: int) -> None:
    """Kill one server after another, each time when every block has its backup. The run must be `PATIENT`."""
    for number in range(kills):
        version = running.until(is_whole).version
        version = running.until_version(version + 2).version
        running.strike(f"server-{number % 3}", signal.SIGKILL)
        began = time.monotonic()
        running.until_version(version + 3)
        assert time.monotonic() - began < 14.0, "the backups take over at once"


def train_through_kills(cwd: Path, options: list[str], case: list[str], kills: int, **env: str) -> Trained:
    """Run `case` while `kills` servers are killed one after another; check that it has no rewind and a clean audit."""
    with live(cwd, [*REPLICATED, *options], TRAIN_CASE, *case, **PATIENT, **env) as running:
        kill_servers(running, kills)
        running.hurry()
        ended = running.wait()
    trained = trained_in(cwd, ended)
    audit = run([*PACELINE, "audit", "run"], cwd)
    assert audit.code == 0, audit.out
    summary = trained.summary
    assert summary["rewinds"] == summary["incarnation"] == summary["recomputed_steps"] == 0, ended.out
    assert summary["restarts"]["server"] == kills
    assert summary["lost_workers"] == 0
    assert summary["failovers"] >= kills
    return trained
