"""Promise 7: roles start in any order and can be restarted; the coordinator may restart at another address.

Upheld by: `core.coordinator.membership` and `core.coordinator.dispatch` (no order of registrations is assumed),
`engines.restart_policy`, and `clients.observer` and `worker.session` (both find a coordinator that moved).
"""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.kit.checked_runs import summary_of
from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.real_runs import SLOW, TRAIN_CASE, live

from paceline.core.effects import PlacementFact
from paceline.messages import Assign, Prepared, Register, Welcome
from paceline.runtime.rundir import RunDir


def test_roles_start_in_any_order() -> None:
    job = CoordinatorKit(workers=1, servers=2)
    job.say("server-1", Register(job.req(), "server", "server-1", 1, "here", "at-1"))
    assert sent(job.join("worker-0"), Prepared) == [], "a server is missing"
    effects = job.say("server-0", Register(job.req(), "server", "server-0", 1, "here", "at-0"))
    assert len(sent(effects, Welcome, "server-0")) == 1
    assert len(written(effects, PlacementFact)) == 1
    assert {a.hold for a in sent(effects, Assign)} == {job.core.spec.held}
    (prepared,) = sent(effects, Prepared, "worker-0")
    assert prepared.placement.addresses == {"server-0": "at-0", "server-1": "at-1"}


@pytest.mark.real_run
def test_a_killed_coordinator_restarts_at_its_address(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "-s", "2"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until_version(3)
        address = RunDir(running.dir).coordinator()
        running.strike("coordinator", signal.SIGKILL)
        version = running.until(lambda status: status.generation == 2).version
        running.until_version(version + 1)
        running.strike("coordinator", signal.SIGTERM)
        running.until(lambda status: status.generation == 3)
        assert RunDir(running.dir).coordinator() == address
        running.hurry()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["steps"] == 12
    assert summary["restarts"] == {"worker": 0, "server": 0, "coordinator": 2, "sampler": 0}
    assert (summary["generations"], summary["rewinds"], summary["lost_workers"]) == (3, 0, 0)
    assert "coordinator was killed by signal 9: restarted (1)" in ended.out
    assert "coordinator ended (exit code 0): restarted (2)" in ended.out


def _bind(taken: socket.socket, port: int) -> None:
    """Bind the port before the restarted coordinator does."""
    deadline = time.monotonic() + 2.0
    while True:
        try:
            taken.bind(("127.0.0.1", port))
            taken.listen()
            return
        except OSError:
            assert time.monotonic() < deadline, "the port was never free"


@pytest.mark.real_run
def test_a_coordinator_whose_port_is_taken_is_found_at_another_address(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "-s", "1"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until_version(3)
        address = RunDir(running.dir).coordinator()
        assert address is not None
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            running.strike("coordinator", signal.SIGKILL)
            _bind(taken, urlsplit(address).port or 0)
            running.until(lambda status: status.generation == 2)
            assert RunDir(running.dir).coordinator() != address
            running.hurry()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["restarts"]["coordinator"] == 1
