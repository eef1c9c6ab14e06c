"""The command line of `paceline dev chaos`. Campaigns that must succeed are in tests/promises."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest
from tests.kit.real_runs import PACELINE, background, run

from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.network import problem

NO_CUTS = problem()
SHAPE = ["-w", "3", "-s", "2", "--mode", "bsp", "--slots", "4", "--checkpoint-every", "10"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "faults",
    [
        ["--kill", "worker=1000"],
        pytest.param(["--cut", "symmetric=9"], marks=pytest.mark.skipif(NO_CUTS is not None, reason=str(NO_CUTS))),
    ],
    ids=["kills", "cuts"],
)
def test_an_interrupted_campaign_ends_every_process(faults: list[str], tmp_path: Path) -> None:
    command = [*PACELINE, "dev", "chaos", *faults, "--dir", "runs", *SHAPE, SCRIPT]
    with background(command, tmp_path) as campaign:
        process = campaign.process
        deadline = time.monotonic() + 60.0
        announced = tmp_path / "runs" / "round-1" / "coordinator.json"
        while not announced.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 2, "a launcher and its roles"
        process.send_signal(signal.SIGTERM)  # the signal that a terminal sends on Ctrl-C
        campaign.wait(20.0).check(130)
    _, alive = psutil.wait_procs(family, timeout=5.0)
    assert not alive
    assert not list(Path("/run/netns").glob(f"paceline-chaos-{process.pid}.*"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--kill", "worker", SCRIPT], "--kill takes worker=N"),
        (["--kill", "worker=1"], "give the SCRIPT to run"),
        (["--kill", "worker=1", "there.py"], "there.py is not a file"),
        ([SCRIPT], "nothing to inject"),
        (["--replicas", "2", "-s", "2", "--kill", "server=1", SCRIPT], "--replicas 2 needs 3 servers"),
        (["--add", "worker=1", SCRIPT], "--add takes server=N"),
        (["--campaign", "fun"], "campaign 'fun' is not known; use one of kills"),
        (["--campaign", "kills", SCRIPT], "a --campaign has its own script: leave SCRIPT out"),
    ],
)
def test_wrong_options_of_chaos_are_refused_by_name(words: list[object], named: str, tmp_path: Path) -> None:
    done = run([*PACELINE, "dev", "chaos", *words], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert not (tmp_path / "runs").exists()
