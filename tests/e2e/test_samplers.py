"""Samplers prepare the batches of a run: its digest is that of a run without them, whatever is killed or added."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, SCRIPTS, Ended, Live, live, run

from paceline.messages.status import Status

COSTLY = SCRIPTS / "costly_input.py"
RUN = ["-s", "1", "--checkpoint-every", "3"]


def digest_of(ended: Ended, cwd: Path) -> str:
    """The digest of a run that succeeded, which the audit must find clean."""
    ended.check()
    run([*PACELINE, "audit", cwd / "run"], cwd).check()
    summary = json.loads((cwd / "run" / "summary.json").read_text())
    assert summary["steps"] == 15
    digest: str = summary["digest"]
    return digest


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    cwd = tmp_path_factory.mktemp("undisturbed")
    ended = run([*PACELINE, "run", "--dir", cwd / "run", "-w", "2", *RUN, COSTLY], cwd)
    return digest_of(ended, cwd)


def working(role: str, status: Status) -> list[str]:
    return [process.name for process in status.processes if process.role == role and process.works]


def kill(running: Live, role: str) -> None:
    """Kill a process of `role` that works."""
    while True:
        status = running.until(lambda status: bool(working(role, status)))
        alive = running.roles()
        starts = {process.name: process.pid for process in status.processes}
        for name in working(role, status):
            if name in alive and alive[name].pid == starts[name]:
                alive[name].kill()
                return


def test_kills_of_workers_and_samplers_change_nothing(tmp_path: Path, undisturbed: str) -> None:
    with live(tmp_path, ["-w", "2", "--samplers", "2", *RUN], COSTLY, "--sleep", "0.2") as running:
        for role in ("sampler", "worker", "sampler", "worker", "sampler"):
            kill(running, role)
        run([*PACELINE, "scale", running.dir, "--samplers", "3"], tmp_path).check()
        running.until(lambda status: len(status.samplers) == 3)
        shown = run([*PACELINE, "status", running.dir], tmp_path).check().out
        running.strike("sampler-2", signal.SIGSTOP)
        running.hurry()
        ended = running.wait()
    assert digest_of(ended, tmp_path) == undisturbed
    assert re.search(r"sampler-\d \(pid \d+\): \d+ slots prepared, \d+ handed over", shown)
    assert "3 samplers wanted instead of 2" in ended.out
    assert "sampler" in json.loads((tmp_path / "run" / "summary.json").read_text())["restarts"]
    assert set(re.findall(r"ENDED ([\d.]+)", ended.out)) == {re.findall(r"ENDED ([\d.]+)", ended.out)[0]}


def test_a_run_goes_on_in_mid_epoch_with_three_workers_and_two_samplers(tmp_path: Path, undisturbed: str) -> None:
    with live(tmp_path, ["-w", "2", *RUN], COSTLY, "--sleep", "0.1") as running:
        status = running.until_version(4)
        running.process.send_signal(signal.SIGINT)
        assert running.wait().code == 130
    assert status.step is not None
    assert status.step % 5, "the run must be stopped within an epoch"
    (tmp_path / "hurry").touch()
    command = [*PACELINE, "run", "--resume", tmp_path / "run", "-w", "3", "--samplers", "2"]
    assert digest_of(run(command, tmp_path), tmp_path) == undisturbed


def test_loader_processes_of_workers_and_samplers_change_nothing(tmp_path: Path, undisturbed: str) -> None:
    began = time.monotonic()
    command = [*PACELINE, "run", "--dir", tmp_path / "run", "-w", "1", "--samplers", "1", *RUN]
    ended = run([*command, COSTLY, "--loader-workers", "2"], tmp_path)
    assert digest_of(ended, tmp_path) == undisturbed
    assert time.monotonic() - began < 60.0
