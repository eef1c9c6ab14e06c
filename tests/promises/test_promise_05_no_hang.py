"""Promise 5: a dead process never hangs the others.

Every wait has a deadline, and its error names the peer, the step and what was awaited.
Upheld by: `core.coordinator.membership` (silence), `engines.hang_detection`, `engines.restart_policy` and
`worker.session` (deadlines of a worker; tests/unit/worker/test_session.py).
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from tests.kit.checked_runs import summary_of
from tests.kit.real_runs import FOREVER, SMALL, TRAIN_CASE, Live, live
from tests.kit.replicated_runs import REPLICATED, is_whole

from paceline.messages.status import Status
from paceline.testing.chaos.campaigns import SCRIPT

pytestmark = pytest.mark.real_run


def test_a_run_completes_when_one_of_two_workers_dies(tmp_path: Path) -> None:
    sleep = json.dumps({"worker-0": 0.02, "worker-1": 0.02})
    with live(tmp_path, ["-w", "2", "-s", "2"], TRAIN_CASE, "norm", "--sleep", sleep) as running:
        running.until_version(2)
        running.roles()["worker-0"].kill()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert "worker-0 was killed by signal 9: restarted (1)" in ended.out
    assert summary["lost_workers"] == 1
    assert summary["steps"] == 12


def test_a_worker_that_hangs_is_replaced_and_may_come_back(tmp_path: Path) -> None:
    arguments = ["norm", "--meet", str(tmp_path / "met"), "--sleep", '{"worker-1": 0.05}']
    timeout = {"PACELINE_HEARTBEAT_TIMEOUT_S": "6"}
    with live(tmp_path, ["-w", "2", "-s", "1"], TRAIN_CASE, *arguments, **timeout) as running:
        running.until_version(2)
        sleeper = running.roles()["worker-1"]
        sleeper.suspend()
        running.until(lambda status: "worker-1" not in status.workers)
        version = running.until(lambda status: status.lost_workers == 1).version
        sleeper.resume()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert len(ended.results()) == 2, "the worker that was suspended succeeded too"
    assert summary["steps"] == 12
    assert version <= 12


@pytest.mark.parametrize("role", ["server-0", "coordinator"])
def test_a_run_that_loses_a_required_role_ends_and_names_it(role: str, tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1", "--max-restarts", "0"], SMALL, *FOREVER) as running:
        running.until_version(1)
        running.roles()[role].kill()
        ended = running.wait(15.0)
    assert ended.code == 3, ended.out
    assert f"{role} ended (signal 9), and --max-restarts is 0" in ended.lines[-1]
    assert f"logs/{role}.log" in ended.lines[-1]


def test_a_run_that_loses_all_workers_ends_by_name(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1", "--max-restarts", "0"], SMALL, *FOREVER) as running:
        running.until_version(1)
        running.roles()["worker-0"].kill()
        ended = running.wait(15.0)
    assert ended.code == 3, ended.out
    assert "no worker is left" in ended.lines[-1]


def hang(running: Live, name: str) -> Status:
    """Suspend a role and never resume it; wait until another process has replaced it."""
    version = running.until(is_whole).version
    stopped = running.roles()[name]
    stopped.send_signal(signal.SIGSTOP)

    def is_replaced(status: Status) -> bool:
        return is_whole(status) and status.version > version + 3 and _pid(status, name) != stopped.pid

    return running.until(is_replaced)


def _pid(status: Status, name: str) -> int:
    pids = {process.name: process.pid for process in status.processes}
    pid: int = status.pid if name == "coordinator" else pids.get(name, 0)
    return pid


@pytest.mark.timeout(200)
def test_a_hung_server_or_coordinator_is_killed_and_restarted(tmp_path: Path) -> None:
    script = ["--epochs", "1000", "--slot-ms", "20"]
    with live(tmp_path, [*REPLICATED, "--slots", "4"], SCRIPT, *script, PACELINE_TIMEOUT_S="12") as running:
        hang(running, "server-1")
        status = hang(running, "coordinator")
        running.process.send_signal(signal.SIGINT)
        ended = running.wait()
    for name in ("server-1", "coordinator"):
        assert re.search(rf"{name} has not answered for \d+ s: it is killed", ended.out), ended.out
    assert (status.rewinds, status.lost_workers) == (0, 0)
    assert len(re.findall(r"restarted \(\d", ended.out)) == 2, ended.out
