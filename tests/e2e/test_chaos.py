"""A short campaign: every role of a real run is killed, and the result is what it would have been anyway.

The long ones are `make chaos`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.cluster import PACELINE, environment, run

from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.chaos.network import problem

NO_CUTS = problem()
KILLS = ["--kill", "worker=6", "--kill", "coordinator=4", "--kill", "server=2"]
SHAPE = ["-w", "3", "-s", "2", "--mode", "bsp", "--slots", "4", "--checkpoint-every", "10"]


@pytest.mark.timeout(420)
def test_a_dozen_kills_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = [*KILLS, "--seed", "1", "--json", str(file), "--dir", "runs", *SHAPE]
    plain = ["--plain-args", "--slot-ms 0", "--plain-shape", "1x1"]
    done = run([*PACELINE, "dev", "chaos", *options, *plain, SCRIPT, "--slot-ms", "60"], tmp_path, timeout_s=400.0)
    assert done.code == 0, done.out
    figures = json.loads(file.read_text())
    assert figures["ok"]
    assert figures["fired"] == {"kill coordinator": 4, "kill server": 2, "kill worker": 6}
    assert figures["digest_equal"] is True
    assert (figures["lost_slots"], figures["duplicate_slots"], figures["lost_commits"]) == (0, 0, 0)
    assert figures["rewinds"] == 2
    assert {role: s["n"] for role, s in figures["recovery_s"].items()} == {"coordinator": 4, "server": 2, "worker": 6}
    (only,) = figures["rounds"]
    assert only["restarts"] == {"coordinator": 4, "server": 2, "worker": 6}
    assert only["audit"]["ok"]
    assert only["steps"] == only["versions"] > 0


COPIED = ["-w", "3", "-s", "3", "--replicas", "1", "--mode", "bsp", "--slots", "4", "--checkpoint-every", "50"]


def campaign(tmp_path: Path, *words: str) -> dict[str, Any]:
    """A campaign that must end well; its figures."""
    file = tmp_path / "figures.json"
    plain = ["--plain-args", "--slot-ms 0", "--plain-shape", "1x1"]
    options = [*COPIED, *words, "--json", str(file), "--dir", "runs", *plain]
    done = run([*PACELINE, "dev", "chaos", *options, SCRIPT], tmp_path, timeout_s=200.0)
    assert done.code == 0, done.out
    figures: dict[str, Any] = json.loads(file.read_text())
    assert figures["ok"]
    assert figures["digest_equal"] is True
    assert (figures["lost_slots"], figures["duplicate_slots"], figures["lost_commits"]) == (0, 0, 0)
    assert figures["rewinds"] == 0, "every block had a copy"
    assert all(one["audit"]["ok"] for one in figures["rounds"])
    return figures


@pytest.mark.timeout(220)
def test_a_killed_server_costs_no_commit(tmp_path: Path) -> None:
    figures = campaign(tmp_path, "--kill", "server=4", "--seed", "2")
    assert figures["fired"] == {"kill server": 4}
    assert figures["recovery_s"]["server"]["n"] == 4
    summary = json.loads((tmp_path / "runs" / "round-1" / "summary.json").read_text())
    assert summary["failovers"] >= 4
    assert 0.0 < summary["failover_s"] < 10.0
    assert summary["restarts"]["server"] == 4


@pytest.mark.timeout(220)
def test_servers_come_and_go(tmp_path: Path) -> None:
    figures = campaign(tmp_path, "--add", "server=1", "--drain", "server=1", "--seed", "2")
    assert figures["fired"] == {"add server": 1, "drain server": 1}
    assert set(figures["pause_s"]) == {"add server", "drain server"}
    assert figures["restarts"].get("server", 0) == 0, "the one that was emptied has ended, and is not missed"


@pytest.mark.timeout(220)
@pytest.mark.skipif(NO_CUTS is not None, reason=str(NO_CUTS))
def test_a_cut_heals(tmp_path: Path) -> None:
    # Of this seed: what one server sends to the others is lost for 4.4 s, then another is cut off from all for 3.1 s.
    figures = campaign(tmp_path, "-w", "2", "--cut", "symmetric=1", "--cut", "one-way=1", "--seed", "149")
    assert figures["fired"] == {"cut one-way": 1, "cut symmetric": 1}
    assert all(figures["restored_s"][f"cut {kind}"]["max"] <= 10.0 for kind in ("symmetric", "one-way"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "faults",
    [
        ["--kill", "worker=1000"],
        pytest.param(["--cut", "symmetric=9"], marks=pytest.mark.skipif(NO_CUTS is not None, reason=str(NO_CUTS))),
    ],
    ids=["kills", "cuts"],
)
def test_ctrl_c_ends_everything(faults: list[str], tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PACELINE, "dev", "chaos", *faults, "--dir", "runs", *SHAPE, SCRIPT],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60.0
        announced = tmp_path / "runs" / "round-1" / "coordinator.json"
        while not announced.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 2, "a launcher and its roles"
        process.send_signal(signal.SIGTERM)  # what Ctrl-C is to a terminal
        out, _ = process.communicate(timeout=20.0)
        assert process.returncode == 130, out
    _, alive = psutil.wait_procs(family, timeout=5.0)
    assert not alive
    assert not list(Path("/run/netns").glob(f"paceline-chaos-{process.pid}.*"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--kill", "worker", SCRIPT], "--kill takes worker=N"),
        (["--kill", "worker=1"], "which script?"),
        (["--kill", "worker=1", "there.py"], "there.py is not a file"),
        ([SCRIPT], "nothing to inject"),
        (["--replicas", "2", "-s", "2", "--kill", "server=1", SCRIPT], "--replicas 2 needs 3 servers"),
        (["--add", "worker=1", SCRIPT], "--add takes server=N"),
        (["--campaign", "fun"], "campaign 'fun' is not known; use one of kills"),
        (["--campaign", "kills", SCRIPT], "--campaign brings its own script"),
    ],
)
def test_refused(words: list[object], named: str, tmp_path: Path) -> None:
    done = run([*PACELINE, "dev", "chaos", *words], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert not (tmp_path / "runs").exists()
