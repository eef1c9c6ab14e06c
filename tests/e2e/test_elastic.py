"""Roles that die, leave and join while a run goes on: it ends as it would have ended anyway."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from tests.e2e.cluster import PACELINE, ROOT, TRAIN_CASE, Ended, Live, environment, live, run
from tests.e2e.reference import expected

from paceline.clients.observer import Observer
from paceline.runtime.rundir import RunDir

SMALL = ROOT / "tests" / "e2e" / "small.py"
FOREVER = ["--epochs", "100000", "--sleep", "0.01"]
SLOW = json.dumps({f"worker-{i}": 0.15 for i in range(8)})  # a busy machine must still be in time to disturb it


def summary_of(ended: Ended, cwd: Path) -> dict[str, Any]:
    """The summary of a run that ended well, and with the right weights in every worker."""
    ended.check()
    summary: dict[str, Any] = json.loads((cwd / "run" / "summary.json").read_text())
    assert summary["digest"] == expected("norm")
    for result in ended.results():
        assert result["norm"]["digest"] == summary["digest"]
    return summary


def strike(running: Live, role: str, number: signal.Signals = signal.SIGKILL) -> None:
    running.roles()[role].send_signal(number)


@contextmanager
def joining(cwd: Path, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*PACELINE, "join", *map(str, words)],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_coordinator_that_dies_is_back_in_a_moment(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "-s", "2"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until_version(3)
        address = RunDir(running.dir).coordinator()
        strike(running, "coordinator", signal.SIGKILL)
        version = running.until(lambda status: status.generation == 2).version
        running.until_version(version + 1)
        strike(running, "coordinator", signal.SIGTERM)
        running.until(lambda status: status.generation == 3)
        assert RunDir(running.dir).coordinator() == address
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["steps"] == 12
    assert summary["restarts"] == {"worker": 0, "server": 0, "coordinator": 2}
    assert (summary["generations"], summary["rewinds"], summary["lost_workers"]) == (3, 0, 0)
    assert "coordinator was killed by signal 9: restarted (1)" in ended.out
    assert "coordinator ended (exit code 0): restarted (2)" in ended.out


def test_a_coordinator_whose_port_is_taken_is_found_at_another(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "-s", "1"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until_version(3)
        address = RunDir(running.dir).coordinator()
        assert address is not None
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            strike(running, "coordinator")
            _bind(taken, urlsplit(address).port or 0)
            running.until(lambda status: status.generation == 2)
            assert RunDir(running.dir).coordinator() != address
            ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["restarts"]["coordinator"] == 1


def _bind(taken: socket.socket, port: int) -> None:
    """Take the port before the next coordinator does, which needs a moment to start."""
    deadline = time.monotonic() + 2.0
    while True:
        try:
            taken.bind(("127.0.0.1", port))
            taken.listen()
            return
        except OSError:
            assert time.monotonic() < deadline, "the port was never free"


def test_a_server_that_dies_means_going_back_to_a_checkpoint(tmp_path: Path) -> None:
    options = ["-w", "2", "-s", "2", "--checkpoint-every", "2"]
    with live(tmp_path, options, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until(lambda status: status.checkpoint is not None and status.version >= 5)
        strike(running, "server-0")
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["steps"] == 12
    assert (summary["rewinds"], summary["incarnation"]) == (1, 1)
    assert summary["restarts"] == {"worker": 0, "server": 1, "coordinator": 0}
    assert "server-0 was killed by signal 9: restarted (1)" in ended.out
    assert ": the job goes back to version" in ended.out
    assert "starts its script again" not in ended.out, "the workers were in the same loop all the time"


def test_without_a_checkpoint_everyone_begins_anew(tmp_path: Path) -> None:
    options = ["-w", "2", "-s", "1", "--checkpoint-every", "0"]
    with live(tmp_path, options, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        version = running.until_version(3).version
        strike(running, "server-0")
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["rewinds"] == 1
    assert summary["recomputed_steps"] >= version
    assert summary["checkpoint"] is None
    assert not (tmp_path / "run" / "checkpoints").exists()
    for worker in ("worker-0", "worker-1"):
        assert f"{worker} starts its script again" in ended.out
    assert summary["restarts"]["worker"] == 0, "nobody died"


def test_a_server_that_dies_when_the_workers_have_ended(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "--seed", "7", "--checkpoint-every", "0"], TRAIN_CASE, "norm") as running:
        running.until_version(1)
        observer = Observer(RunDir(running.dir).coordinator, RunDir(running.dir).token())
        deadline = time.monotonic() + 60.0
        while (status := observer.status()).step is None or status.step < 12 or status.workers_alive:
            assert time.monotonic() < deadline
        strike(running, "server-0")
        observer.close()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["rewinds"] == 1
    assert "server-0 is lost (signal 9): the job begins anew" in ended.out
    assert "a server was lost at the very end: the workers start their scripts again" in ended.out
    assert len(ended.results()) == 4


def test_a_worker_that_is_told_to_leave_hands_back_what_it_holds(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "3", "-s", "1"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until(lambda status: status.version >= 2 and status.workers_alive == 3)
        process = running.roles()["worker-1"]
        process.send_signal(signal.SIGTERM)
        running.until(lambda status: status.workers == ("worker-0", "worker-2"))
        running.until(lambda status: status.wanted_workers == 2)
        psutil.wait_procs([process], timeout=10.0)
        assert "worker-1" not in running.roles()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["lost_workers"] == 0
    assert summary["restarts"]["worker"] == 0
    assert "worker-1 was told to leave" in ended.out
    assert len(ended.results()) == 2


def test_when_every_worker_leaves_the_run_ends_and_says_how_to_go_on(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1"], SMALL, *FOREVER) as running:
        running.until_version(1)
        strike(running, "worker-0", signal.SIGTERM)
        ended = running.wait(20.0)
    assert ended.code == 3, ended.out
    assert "no worker is left at step" in ended.lines[-1]
    assert f"paceline run --resume {running.dir}" in ended.lines[-1]


def test_workers_join_and_leave_from_another_terminal(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with live(tmp_path, ["-w", "1"], SMALL, *FOREVER) as running:
        running.until_version(0)
        with (
            joining(elsewhere, running.dir, SMALL, *FOREVER) as first,
            joining(elsewhere, running.dir) as second,
        ):
            running.until(lambda status: status.workers_alive == 3)
            first.send_signal(signal.SIGINT)
            said, _ = first.communicate(timeout=20.0)
            assert first.returncode == 0, said
            assert "has left" in said
            second.send_signal(signal.SIGTERM)
            said, _ = second.communicate(timeout=20.0)
            assert second.returncode == 0, said
        status = running.until(lambda status: status.workers == ("worker-0",))
        assert status.lost_workers == 0
        version = status.version
        running.until_version(version + 2)
        running.process.send_signal(signal.SIGINT)
        assert running.wait(10.0).code == 130


def test_a_joined_worker_ends_with_the_job_and_is_one_of_many(tmp_path: Path) -> None:
    arguments = ["norm", "--meet", str(tmp_path / "met")]
    with live(tmp_path, ["-w", "1", "--seed", "7"], TRAIN_CASE, *arguments) as running:
        running.until_version(0)
        with joining(tmp_path, "run", TRAIN_CASE, *arguments) as process:
            said, _ = process.communicate(timeout=60.0)
            assert process.returncode == 0, said
        ended = running.wait()
    summary_of(ended, tmp_path)
    assert f'"digest": "{expected("norm")}"' in said, "it holds the final version, too"


def test_a_run_grows_and_shrinks(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1"], SMALL, *FOREVER) as running:
        running.until_version(1)
        more = run([*PACELINE, "scale", "run", "-w", "3"], tmp_path, timeout_s=20).check()
        assert "3 workers instead of 1" in more.out
        running.until(lambda status: status.workers == ("worker-0", "worker-1", "worker-2"))
        fewer = run([*PACELINE, "scale", "run", "-w", "2"], tmp_path, timeout_s=20).check()
        assert "2 workers instead of 3" in fewer.out
        status = running.until(lambda status: status.workers == ("worker-0", "worker-1"))
        assert status.lost_workers == 0
        none = run([*PACELINE, "scale", "run", "-w", "0"], tmp_path, timeout_s=20).check(2)
        assert "--workers must be at least 1, not 0" in none.out
        strike(running, "coordinator")
        running.until(lambda status: status.generation == 2 and status.workers_alive == 2)
        running.process.send_signal(signal.SIGINT)
        ended = running.wait(10.0)
    assert "worker-2 was told to leave" in ended.out
    assert "worker-1 was told to leave" not in ended.out


def test_a_role_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "--max-restarts", "1"], SMALL, *FOREVER) as running:
        running.until(lambda status: status.version >= 1 and status.workers_alive == 2)
        _strike_until_given_up(running, "worker-1")
        running.until(lambda status: status.wanted_workers == 1)
        version = running.until(lambda status: status.workers == ("worker-0",)).version
        running.until_version(version + 2)
        _strike_until_given_up(running, "coordinator")
        ended = running.wait(20.0)
    assert ended.code == 3, ended.out
    often = "ended (signal 9) 2 times in a row within 10 s of its start, and --max-restarts is 1"
    assert f"worker-1 {often}: it is not restarted" in ended.out
    advice = f"see logs/coordinator.log; `paceline run --resume {running.dir}` goes on"
    assert ended.lines[-1] == f"paceline: coordinator {often} ({advice})"


def _strike_until_given_up(running: Live, name: str) -> None:
    """A life that a loaded machine made long does not count: three deaths are enough in any case."""
    for _ in range(3):
        found = running.roles().get(name)
        if found is None:
            return
        found.kill()
        deadline = time.monotonic() + 1.0
        while (again := running.roles().get(name)) is None or again.pid == found.pid:
            if time.monotonic() > deadline or running.process.poll() is not None:
                return
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["join", "nowhere"], "nowhere is not a run directory"),
        (["join", "over"], "over is over: done after 7 steps"),
        (["join", "ended"], "no coordinator of ended answers: it is not running"),
        (["scale", "nowhere", "-w", "2"], "nowhere is not a run directory"),
        (["scale", "over", "-w", "2"], "over is over"),
        (["scale", "ended", "-w", "2"], "no coordinator of ended answers"),
        (["scale", "ended"], "Give --workers, --servers or both"),
    ],
)
def test_what_cannot_be_joined_or_scaled(words: Sequence[str], named: str, tmp_path: Path) -> None:
    for name in ("over", "ended"):
        made = RunDir.create(tmp_path / name)
        made.write_plan({"script": str(SMALL)})
        made.announce("tcp://127.0.0.1:9", 1)
    (tmp_path / "over" / "summary.json").write_text('{"steps": 7}')
    done = run([*PACELINE, *words], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert "Traceback" not in done.out
