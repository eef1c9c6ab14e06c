"""A storm: kills without waiting, and the times without a commit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.kit.chaos_run import dead, planned, stage
from tests.kit.statuses import seen

from paceline.testing.chaos.plan import Fault, Kind
from paceline.testing.chaos.storm_faults import CommitTimes


def times(*statuses: tuple[float, int, int]) -> CommitTimes:
    commits = CommitTimes()
    for at, incarnation, version in statuses:
        commits.see(seen(at, version, incarnation=incarnation))
    return commits


def test_a_commit_is_a_version_above_the_last_one_of_its_incarnation() -> None:
    commits = times((0.0, 0, 5), (0.1, 0, 5), (0.2, 0, 6), (1.0, 1, 3), (1.5, 1, 4), (2.0, 1, 4))
    assert commits.at == [0.0, 0.2, 1.5], "a rewind is no commit, a step that is computed again is one"


def test_each_kill_has_the_longest_time_without_a_commit_up_to_the_next_kill() -> None:
    commits = times((0.0, 0, 1), (1.0, 0, 2), (4.0, 0, 3), (4.5, 0, 4), (5.0, 0, 5))
    assert commits.pauses([0.5, 1.5, 2.5, 4.2]) == [3.0, 3.0, 3.0, 0.5]


@pytest.fixture
def family() -> Iterator[list[psutil.Process]]:
    """The test as the launcher, and two children that look like a worker and a fork server."""
    me, code = str(os.getpid()), "import time; time.sleep(60)"
    words = (["paceline.runtime.role_process", me, "worker-1", "x"], ["paceline.runtime.fork_server", me])
    started = [subprocess.Popen([sys.executable, "-S", "-c", code, *more]) for more in words]
    yield [psutil.Process(), *(psutil.Process(p.pid) for p in started)]
    for process in started:
        process.kill()
        process.wait()


def test_a_storm_kills_without_waiting_for_recovery(tmp_path: Path, family: list[psutil.Process]) -> None:
    _, worker, fork_server = family
    faults = {Fault(Kind.STORM, "worker"): 1, Fault(Kind.STORM, "fork-server"): 1}
    run, injector = stage(tmp_path, "worker-1", worker, faults=faults)
    run.processes = family
    assert injector.do(planned(Kind.STORM, "worker"))
    worker.wait(5.0)
    assert not injector.settled
    assert not dead(fork_server)
    assert injector.figures.fired == {"storm worker": 1}
    injector.settle()
    assert injector.settled
    assert len(injector.figures.pause_s["storm"]) == 1
    assert injector.figures.pause_s["storm"][0] < 0.2, "the run went on"
    assert injector.do(planned(Kind.STORM, "fork-server"))
    fork_server.wait(5.0)
