"""`paceline.launch`: real runs from Python, in this process and in programs that end in every way."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit.kept_fork_server import KeptForkServer
from tests.kit.real_runs import FOREVER, PACELINE, SMALL, Background, background, run

import paceline
from paceline.engines import processes
from paceline.errors import RunError, RunStoppedError, UsageError
from paceline.runtime.rundir import RunDir

pytestmark = pytest.mark.timeout(300)  # the first test also waits for torch, twice
SHORT: list[object] = ["--epochs", 3]
LAUNCHED = """\
import paceline, sys, time
run = paceline.launch({script!r}, args={args!r}, dir="run", seed=3, show="none", checkpoint_every=100_000)
while (run.status().step or 0) < 3:
    time.sleep(0.02)
print("RUNNING", flush=True)
"""


@pytest.fixture(scope="module")
def kept() -> Iterator[KeptForkServer]:
    server = KeptForkServer()
    yield server
    server.end()


@pytest.fixture
def warm_launch(kept: KeptForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process find a fork server that has loaded torch."""
    monkeypatch.setattr(processes, "ForkClient", kept.lend_opened)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def until(reached: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, "what the test awaits never came"
        time.sleep(0.02)


def until_step(launched: paceline.Run, step: int) -> None:
    until(lambda: (launched.status().step or 0) >= step)


# ------------------------------------------------------------------ a run that goes well


@pytest.mark.usefixtures("warm_launch")
def test_wait_returns_the_summary_of_the_same_run_by_the_command_line(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["-w", "2", "-s", "2", "--seed", "3", "--dir", "typed"]
    run([*PACELINE, "run", *options, SMALL, *map(str, SHORT)], here).check()
    typed = json.loads((here / "typed" / "summary.json").read_text())
    launched = paceline.launch(SMALL, args=SHORT, workers=2, servers=2, seed=3)
    assert launched.directory == here / "runs" / "small-0001"
    summary = launched.wait(60.0)
    assert summary.digest == typed["digest"]
    assert (summary.state, summary.steps, summary.workers) == ("done", 12, 2)
    assert launched.wait() == summary, "a second call returns it again"
    status = launched.status()
    assert (status.state, status.step, status.unfinished) == ("done", 12, False)
    assert (here / "runs" / "latest").resolve() == launched.directory.resolve()
    out, err = capfd.readouterr()
    assert "[worker-" in out, "what a script prints"
    assert str(summary.digest) in out, "the summary"
    assert "step 12/12" in err, "the progress"


@pytest.mark.usefixtures("warm_launch")
@pytest.mark.parametrize(("show", "has_progress"), [("progress", True), ("none", False)])
def test_less_can_be_shown(show: str, has_progress: bool, capfd: pytest.CaptureFixture[str]) -> None:
    paceline.launch(SMALL, args=SHORT, workers=1, show=show).wait(60.0)
    out, err = capfd.readouterr()
    assert "[worker-" not in out + err
    assert ("step 12/12" in err, "digest" in out) == (has_progress, has_progress)
    assert has_progress or not out + err


@pytest.mark.usefixtures("warm_launch")
def test_two_runs_at_once_one_from_a_thread_that_ends_in_a_directory_that_changes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[paceline.Run] = []

    def other() -> None:
        found.append(paceline.launch(SMALL, args=SHORT, workers=1, seed=3, dir="b", show="none"))

    (here / "elsewhere").mkdir()
    (here / "train.py").write_text(SMALL.read_text())
    thread = threading.Thread(target=other)
    thread.start()
    mine = paceline.launch("train.py", args=SHORT, workers=2, seed=3, dir="a", checkpoints="kept", show="none")
    thread.join(60.0)
    monkeypatch.chdir(here / "elsewhere")
    assert mine.wait(60.0).digest == found[0].wait(60.0).digest
    assert (here / "a" / "summary.json").exists()
    assert list((here / "kept").rglob("COMPLETE"))
    assert not list((here / "elsewhere").iterdir())


@pytest.mark.usefixtures("warm_launch")
def test_the_size_changes_while_it_runs(here: Path) -> None:
    with paceline.launch(SMALL, args=FOREVER, workers=1, servers=1, replicas=0, dir="run", show="none") as launched:
        until_step(launched, 2)
        with pytest.raises(TimeoutError, match="has not ended within"):
            launched.wait(0.01)
        launched.scale(workers=3, servers=2)
        until(lambda: launched.status().workers_alive == 3 and len(launched.status().servers) == 2)
        with pytest.raises(UsageError, match=r"^workers must be at least 1, not 0"):
            launched.scale(workers=0)
        with pytest.raises(UsageError, match=r"^give workers, servers, samplers or several of them"):
            launched.scale()
    assert launched.status().state == "interrupted", "the end of the block stops it"
    with pytest.raises(UsageError, match="has ended and cannot be scaled"):
        launched.scale(workers=1)
    assert json.loads((here / "run" / "run.json").read_text())["workers"] == 3


# ------------------------------------------------------------------ a run that ends before


@pytest.mark.usefixtures("warm_launch")
def test_a_script_that_fails_raises_an_error_with_its_own_traceback_last(capfd: pytest.CaptureFixture[str]) -> None:
    launched = paceline.launch(SMALL, args=["--raise-at", 2], workers=1)
    with pytest.raises(RunError, match="the dog ate my gradient") as raised:
        launched.wait(60.0)
    error = raised.value
    assert (error.code, type(error)) == (1, RunError)
    assert "fix the script or its data" in error.advice
    assert 'raise RuntimeError("the dog ate my gradient")' in error.trace
    assert str(error).splitlines()[-1] == "RuntimeError: the dog ate my gradient"
    assert launched.status().state == "failed"
    assert "Traceback" not in capfd.readouterr().err, "the error has it: it is not shown twice"


@pytest.mark.usefixtures("warm_launch")
def test_a_stopped_run_has_its_last_step_in_a_checkpoint_and_is_resumed(here: Path) -> None:
    plain = paceline.launch(SMALL, args=["--epochs", 30], workers=1, seed=3, show="none").wait(60.0)
    slow = ["--epochs", 30, "--sleep", 0.02]
    launched = paceline.launch(SMALL, args=slow, workers=2, seed=3, checkpoint_every=100_000, dir="run", show="none")
    until_step(launched, 5)
    launched.stop()
    launched.stop()
    with pytest.raises(RunStoppedError, match=r"^stopped \(`paceline run --resume .*` continues at step \d+\)$") as end:
        launched.wait()
    assert end.value.code == 130
    assert not RunDir(here / "run").launched
    again = paceline.launch(SMALL, args=["--epochs", 30], resume="run", show="none")
    assert again.directory == here / "run"
    assert again.wait(60.0).digest == plain.digest


@pytest.mark.usefixtures("warm_launch")
def test_a_run_that_is_stopped_without_a_checkpoint_has_none(here: Path) -> None:
    launched = paceline.launch(SMALL, args=FOREVER, workers=1, checkpoint_every=100_000, dir="run", show="none")
    until_step(launched, 3)
    launched.stop(save=False)
    with pytest.raises(RunStoppedError, match="starts at step 0"):
        launched.wait()
    assert not list((here / "run" / "checkpoints").glob("*/COMPLETE"))


@pytest.mark.usefixtures("warm_launch")
def test_a_run_that_is_stopped_while_it_waits_for_hosts_ends_at_once(here: Path) -> None:
    run([*PACELINE, "token", "token"], here).check()
    launched = paceline.launch(
        SMALL, engine="hosts", listen="127.0.0.1:0", token_file="token", dir="run", min_hosts=2, show="none"
    )
    began = time.monotonic()
    time.sleep(0.3)
    launched.stop()
    assert time.monotonic() - began < 10.0
    with pytest.raises(RunStoppedError):
        launched.wait()


@pytest.mark.usefixtures("warm_launch")
def test_a_second_launch_of_a_run_that_runs_is_refused(here: Path) -> None:
    with paceline.launch(SMALL, args=FOREVER, workers=1, dir="run", show="none") as launched:
        until_step(launched, 1)
        with pytest.raises(UsageError, match="run is running: end it first"):
            paceline.launch(resume="run", show="none")
        with pytest.raises(UsageError, match=r"holds a run already: name another one \(dir, "):
            paceline.launch(SMALL, dir="run", show="none")


def test_a_script_that_launches_itself_is_refused(here: Path) -> None:
    (here / "driver.py").write_text("import paceline\npaceline.launch(__file__, workers=1, dir='run').wait()\n")
    ended = run([sys.executable, "driver.py"], here).check(1)
    assert "this process belongs to the run in" in ended.out
    assert ended.lines[-1].startswith("paceline.errors.UsageError: paceline.launch: this process belongs to the run in")


# ------------------------------------------------------------------ the end of the program


@contextmanager
def program(here: Path, then: str) -> Iterator[tuple[Background, list[psutil.Process]]]:
    """A program that has launched a run without an end, and then does something; with the processes of the run."""
    (here / "driver.py").write_text(LAUNCHED.format(script=str(SMALL), args=FOREVER) + then)
    with background([sys.executable, "driver.py"], here) as started:
        until(lambda: b"RUNNING" in Path(f"/proc/self/fd/{started.output.fileno()}").read_bytes())
        roles = psutil.Process(started.process.pid).children(recursive=True)
        assert len(roles) >= 4, "2 workers, a server, a coordinator"
        yield started, roles
        _, alive = psutil.wait_procs(roles, timeout=10.0)
        assert not alive, "the program leaves processes behind"


def ended(here: Path) -> dict[str, Any]:
    end = RunDir(here / "run").end()
    assert end is not None
    return end


def test_ctrl_c_ends_the_run_with_a_checkpoint_and_then_the_program(here: Path) -> None:
    with program(here, "run.wait()\n") as (driver, _):
        driver.process.send_signal(signal.SIGINT)
        told = driver.wait()
    assert told.code == -signal.SIGINT
    assert told.lines[-1] == "KeyboardInterrupt"
    end = ended(here)
    assert (end["code"], end["reason"]) == (130, "interrupted")
    assert end["checkpoint"]["step"] >= 3, "the only checkpoint is the last one"


def test_a_second_ctrl_c_ends_the_run_at_once(here: Path) -> None:
    patient = "import paceline.engines.last_checkpoint as it\nit.PATIENCE_S = 60.0\n"
    with program(here, f"{patient}run.wait()\n") as (driver, roles):
        coordinator = next(role for role in roles if "coordinator" in " ".join(role.cmdline()))
        coordinator.suspend()  # so that no checkpoint can be made
        driver.process.send_signal(signal.SIGINT)
        time.sleep(0.7)
        began = time.monotonic()
        driver.process.send_signal(signal.SIGINT)
        told = driver.wait()
    assert told.code == -signal.SIGINT
    assert time.monotonic() - began < 40.0, "it does not wait for the checkpoint"
    assert ended(here)["reason"] == "interrupted"


def test_sigterm_ends_the_run_with_a_checkpoint_and_then_the_program(here: Path) -> None:
    with program(here, "run.wait()\n") as (driver, _):
        driver.process.send_signal(signal.SIGTERM)
        assert driver.wait().code == 143
    end = ended(here)
    assert end["code"] == 143
    assert end["checkpoint"]["step"] >= 3


def test_a_program_that_ends_without_waiting_stops_its_run(here: Path) -> None:
    with program(here, "del run\nraise LookupError('the program fails')\n") as (driver, _):
        told = driver.wait()
    assert told.code == 1
    assert "LookupError: the program fails" in told.out
    end = ended(here)
    assert (end["code"], end["reason"]) == (130, "stopped")
    assert end["checkpoint"]["step"] >= 3


@pytest.mark.usefixtures("cold")
def test_a_program_that_is_killed_leaves_no_process_behind(here: Path) -> None:
    with program(here, "run.wait()\n") as (driver, _):
        driver.process.kill()
        driver.wait()
    assert not RunDir(here / "run").launched


def test_ctrl_c_while_stop_waits_is_not_swallowed(here: Path) -> None:
    with program(here, "import pathlib; pathlib.Path('now').touch()\nrun.stop()\nprint('WENT ON')\n") as (
        driver,
        roles,
    ):
        next(role for role in roles if "coordinator" in " ".join(role.cmdline())).suspend()
        until((here / "now").exists)
        time.sleep(0.3)
        driver.process.send_signal(signal.SIGINT)
        told = driver.wait()
    assert told.code == -signal.SIGINT
    assert "WENT ON" not in told.out


def test_a_third_ctrl_c_does_not_wait_for_a_supervisor_that_hangs(here: Path) -> None:
    hang = "import paceline.engines.stop_requests as it\nit.StopRequests.check = lambda self: time.sleep(1000)\n"
    with program(here, hang + "open('now', 'w').close()\nrun.wait()\n") as (driver, _):
        until((here / "now").exists)
        for _ in range(3):
            time.sleep(0.5)
            driver.process.send_signal(signal.SIGINT)
        assert driver.wait(30.0).code == -signal.SIGINT
