"""The seam between the supervisor and the processes of a run: each runner starts, signals and ends them alike."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.dummy_runner import DummyRunner
from tests.kit.roles import run_in, worker

from paceline.engines.local_runner import LocalRunner
from paceline.engines.output import Exit, Line
from paceline.engines.plan import RunPlan
from paceline.engines.role_runner import RoleRunner
from paceline.engines.runners import make_runner
from paceline.runtime.roles import SERVER, WORKER

SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


@pytest.fixture(params=["local", "dummy"])
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RoleRunner]:
    found: RoleRunner = DummyRunner() if request.param == "dummy" else LocalRunner(run_in(tmp_path), cwd=tmp_path)
    yield found
    found.end(0.2, at_once=lambda role: True)


def start(runner: RoleRunner, folder: Path, number: int = 1) -> None:
    script = folder / "script.py"
    script.write_text(SLEEPS)
    assert runner.has_room("worker-0")
    runner.start("worker-0", number, lambda place: worker(run_in(folder), script, start=number))
    assert [(process.name, process.start) for process in runner.alive()] == [("worker-0", number)]


def the_exit(runner: RoleRunner) -> Exit:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        event = runner.next_event(0.05)
        if isinstance(event, Exit):
            return event
        assert event is None or isinstance(event, Line)
    raise AssertionError("no process has ended")


def test_a_process_is_started_signalled_and_started_again_under_its_name(runner: RoleRunner, tmp_path: Path) -> None:
    for number in (1, 2):
        start(runner, tmp_path, number)
        assert runner.alive(SERVER) == []
        assert len(runner.alive(WORKER)) == 1
        runner.signal("worker-0", signal.SIGKILL, group=True)
        assert the_exit(runner) == Exit("worker-0", number, -signal.SIGKILL)
        assert runner.alive() == []
    runner.signal("worker-0", signal.SIGKILL)  # it has ended: nothing happens
    assert runner.next_event(0.0) is None


def test_the_end_leaves_no_process(runner: RoleRunner, tmp_path: Path) -> None:
    start(runner, tmp_path)
    runner.end(0.2, at_once=lambda role: role is WORKER)
    assert runner.alive() == []


def test_a_runner_without_hosts_names_none(runner: RoleRunner) -> None:
    assert runner.gather(pytest.fail) == {}
    assert not runner.has_host("a")
    assert runner.roles_on("a") == []
    assert runner.capacity() == []
    assert runner.fork_server_ended() is None
    runner.drain("a")
    runner.dismiss("a")
    runner.saw({("worker-0", 1)})


def test_a_plan_without_hosts_runs_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    made = make_runner(RunPlan(script=tmp_path / "train.py", run=tmp_path), run_in(tmp_path))
    assert isinstance(made, LocalRunner)
