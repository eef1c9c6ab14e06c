"""A short campaign: every role of a real run is killed, and the result is what it would have been anyway.

The long ones are `make chaos`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.cluster import PACELINE, environment, run

from paceline.testing.chaos.campaigns import SCRIPT

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


@pytest.mark.timeout(120)
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PACELINE, "dev", "chaos", "--kill", "worker=1000", "--dir", "runs", *SHAPE, SCRIPT],
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


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--kill", "worker", SCRIPT], "--kill takes worker=N"),
        (["--kill", "worker=1"], "which script?"),
        (["--kill", "worker=1", "there.py"], "there.py is not a file"),
        ([SCRIPT], "nothing to inject"),
        (["--campaign", "fun"], "campaign 'fun' is not known; use one of kills"),
        (["--campaign", "kills", SCRIPT], "--campaign brings its own script"),
    ],
)
def test_refused(words: list[object], named: str, tmp_path: Path) -> None:
    done = run([*PACELINE, "dev", "chaos", *words], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert not (tmp_path / "runs").exists()
