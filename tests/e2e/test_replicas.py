"""Blocks with copies: servers are killed in the middle of a run, and neither a step nor a bit is lost."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cluster import PACELINE, Live, live, run

from paceline.messages.status import Status
from paceline.testing.chaos.campaigns import SCRIPT

EPOCHS = 4
SHAPE = ["--seed", "7", "-w", "2", "-s", "3", "--replicas", "1"]


def is_whole(status: Status) -> bool:
    """Whether every block has all its copies, and every server is there."""
    return status.placement.short == 0 and len(status.servers) == 3


def kill_servers(running: Live, kills: int) -> None:
    """One server after the other, each time when every block has a copy elsewhere."""
    for number in range(kills):
        version = running.until(is_whole).version
        version = running.until_version(version + 2).version
        running.roles()[f"server-{number % 3}"].send_signal(signal.SIGKILL)
        began = time.monotonic()
        running.until_version(version + 3)
        assert time.monotonic() - began < 5.0, "the others go on at once"


def hang(running: Live, name: str) -> Status:
    """Stop a role for good: it is another process that goes on."""
    version = running.until(is_whole).version
    stopped = running.roles()[name]
    stopped.send_signal(signal.SIGSTOP)

    def goes_on(status: Status) -> bool:
        return is_whole(status) and status.version > version + 3 and _pid(status, name) != stopped.pid

    return running.until(goes_on)


def _pid(status: Status, name: str) -> int:
    pids = {process.name: process.pid for process in status.processes}
    pid: int = status.pid if name == "coordinator" else pids.get(name, 0)
    return pid


def train(cwd: Path, mode: str, epochs: int, kills: int, **env: str) -> dict[str, Any]:
    """A run that loses `kills` servers, and what it says at its end."""
    cwd.mkdir()
    script = ["--epochs", str(epochs), "--slot-ms", "20" if kills else "0"]
    options = [*SHAPE, "--mode", mode, "--slots", "4" if mode == "bsp" else "1"]
    with live(cwd, options, SCRIPT, *script, **env) as running:
        kill_servers(running, kills)
        ended = running.wait()
    ended.check()
    audit = run([*PACELINE, "audit", "run"], cwd)
    assert audit.code == 0, audit.out
    summary: dict[str, Any] = json.loads((cwd / "run" / "summary.json").read_text())
    assert summary["rewinds"] == summary["incarnation"] == summary["recomputed_steps"] == 0, ended.out
    assert summary["restarts"]["server"] == kills
    assert summary["lost_workers"] == 0
    assert summary["failovers"] >= kills
    return summary


@pytest.mark.timeout(200)
def test_servers_that_die_cost_no_step_and_no_bit_over_tcp(tmp_path: Path) -> None:
    """As `test_chaos` shows it for peers that share memory."""
    plain = train(tmp_path / "plain", "bsp", EPOCHS, 0)
    struck = train(tmp_path / "struck", "bsp", EPOCHS, 2, PACELINE_LANE="tcp")
    assert struck["digest"] == plain["digest"]
    assert struck["steps"] == plain["steps"]


NOTED = """
import sys, pathlib
from paceline.worker.job import Job
batches = Job.batches
def noted(self, *arguments, **named):
    with pathlib.Path(f"turns-{self._session.port.node.replace('/', '-')}").open("a", buffering=1) as file:
        for batch in batches(self, *arguments, **named):
            grant = self._turns.grant
            file.write(f"{grant.step} {grant.slot}\\n")
            yield batch
Job.batches = noted
script = sys.argv[1]
sys.argv = sys.argv[1:]
exec(compile(pathlib.Path(script).read_text(), script, "exec"))
"""


@pytest.mark.timeout(200)
def test_no_slot_is_computed_again_after_a_failover(tmp_path: Path) -> None:
    """The gradients are sent to where the blocks are now."""
    (tmp_path / "noted.py").write_text(NOTED)
    script = [str(SCRIPT), "--epochs", "3", "--samples", "512", "--slot-ms", "300"]  # nobody is late so soon
    with live(tmp_path, [*SHAPE, "--slots", "2"], tmp_path / "noted.py", *script) as running:
        kill_servers(running, 3)
        ended = running.wait()
    ended.check()
    turns = [line for file in tmp_path.glob("turns-*") for line in file.read_text().splitlines()]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["failovers"] >= 3
    assert summary["wasted_slots"] > 0, "no kill was in the middle of a step"
    assert sorted(turns) == sorted(f"{step} {slot}" for step in range(summary["steps"]) for slot in range(2))


@pytest.mark.timeout(200)
def test_with_a_window_nothing_is_lost_either(tmp_path: Path) -> None:
    summary = train(tmp_path / "struck", "ssp:3", 6, 2)
    assert summary["steps"] == 6 * 128
    assert summary["max_staleness"] <= 3


@pytest.mark.timeout(200)
def test_who_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    script = ["--epochs", "1000", "--slot-ms", "20"]
    with live(tmp_path, [*SHAPE, "--slots", "4"], SCRIPT, *script, PACELINE_TIMEOUT_S="12") as running:
        hang(running, "server-1")
        status = hang(running, "coordinator")
        running.process.send_signal(signal.SIGINT)
        ended = running.wait()
    for name in ("server-1", "coordinator"):
        assert re.search(rf"{name} has not answered for \d+ s: it is killed", ended.out), ended.out
    assert (status.rewinds, status.lost_workers) == (0, 0)
    assert len(re.findall(r"restarted \(\d", ended.out)) == 2, ended.out


@pytest.mark.timeout(200)
def test_a_server_that_is_given_up_does_not_end_a_run_that_others_can_carry(tmp_path: Path) -> None:
    script = ["--epochs", "4", "--slot-ms", "20"]
    with live(tmp_path, [*SHAPE, "--slots", "4", "--max-restarts", "0"], SCRIPT, *script) as running:
        running.until(is_whole)
        running.roles()["server-1"].send_signal(signal.SIGKILL)
        running.until(lambda status: status.wanted_servers == 2 and status.placement.short == 0)
        ended = running.wait()
    ended.check()
    why = "server-1 ended (signal 9), and --max-restarts is 0"
    assert f"{why}: the run goes on with 2 servers" in ended.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rewinds"], summary["servers"]) == (0, 2)
