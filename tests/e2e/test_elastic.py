"""Workers leave and join during a run, and roles are restarted or given up, without a change of the result."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from tests.kit.checked_runs import summary_of
from tests.kit.real_runs import (
    FOREVER,
    PACELINE,
    SLOW,
    SMALL,
    TRAIN_CASE,
    Background,
    background,
    live,
    run,
    trained_in,
)
from tests.kit.reference_training import expected

from paceline.runtime.rundir import RunDir


def joining(cwd: Path, *words: str | Path) -> AbstractContextManager[Background]:
    return background([*PACELINE, "join", *words], cwd)


def test_a_worker_that_gets_sigterm_gives_its_slot_back_and_leaves(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "3", "-s", "1"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until(lambda status: status.version >= 2 and status.workers_alive == 3)
        process = running.roles()["worker-1"]
        process.send_signal(signal.SIGTERM)
        running.until(lambda status: status.workers == ("worker-0", "worker-2"))
        running.until(lambda status: status.wanted_workers == 2)
        psutil.wait_procs([process], timeout=10.0)
        assert "worker-1" not in running.roles()
        running.hurry()
        ended = running.wait()
    summary = summary_of(ended, tmp_path)
    assert summary["lost_workers"] == 0
    assert summary["restarts"]["worker"] == 0
    assert "worker-1 was told to leave" in ended.out
    assert len(ended.results()) == 2


def test_a_run_that_every_worker_leaves_ends_and_names_resume(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "1"], SMALL, *FOREVER) as running:
        running.until_version(1)
        running.strike("worker-0", signal.SIGTERM)
        ended = running.wait(20.0)
    assert ended.code == 3, ended.out
    assert "no worker is left at step" in ended.lines[-1]
    assert f"paceline run --resume {running.dir}" in ended.lines[-1]


def test_workers_join_and_leave_from_another_terminal(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (copied := elsewhere / "copied").mkdir()
    with live(tmp_path, ["-w", "1"], SMALL, *FOREVER) as running:
        running.until_version(0)
        for name in ("token", "coordinator.json", "run.json"):
            shutil.copy(running.dir / name, copied)
        with (
            joining(elsewhere, running.dir, SMALL, *FOREVER) as first,
            joining(elsewhere, copied) as second,
        ):
            running.until(lambda status: status.workers_alive == 3)
            first.process.send_signal(signal.SIGINT)
            assert "has left" in first.wait(20.0).check().out
            second.process.send_signal(signal.SIGTERM)
            second.wait(20.0).check()
        status = running.until(lambda status: status.workers == ("worker-0",))
        assert status.lost_workers == 0
        version = status.version
        running.until_version(version + 2)
        running.process.send_signal(signal.SIGINT)
        assert running.wait(10.0).code == 130


def test_a_joined_worker_ends_with_the_job_and_holds_its_result(tmp_path: Path) -> None:
    arguments = ["norm", "--meet", str(tmp_path / "met")]
    with live(tmp_path, ["-w", "1", "--seed", "7"], TRAIN_CASE, *arguments) as running:
        running.until_version(0)
        with joining(tmp_path, "run", TRAIN_CASE, *arguments) as joined:
            said = joined.wait(60.0).check().out
        ended = running.wait()
    summary_of(ended, tmp_path)
    assert f'"digest": "{expected("norm")}"' in said, "the joined worker holds the final version"


def test_scale_adds_and_removes_workers(tmp_path: Path) -> None:
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
        running.strike("coordinator")
        running.until(lambda status: status.generation == 2 and status.workers_alive == 2)
        running.process.send_signal(signal.SIGINT)
        ended = running.wait(10.0)
    assert "worker-2 was told to leave" in ended.out
    assert "worker-1 was told to leave" not in ended.out


def test_a_role_that_keeps_dying_is_not_restarted_for_ever(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", "--max-restarts", "1"], SMALL, "--dies", "worker-1") as running:
        ended = running.wait()
    rule = "within 10 s of its start, each time without a commit, and --max-restarts is 1"
    assert f"worker-1 ended (signal 9) 2 times in a row {rule}: it is not restarted" in ended.out
    summary = trained_in(tmp_path, ended).summary
    assert (summary["workers"], summary["restarts"]["worker"]) == (1, 1)


def test_a_worker_that_hangs_in_its_turn_does_not_keep_a_complete_job_from_its_end(tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2"], SMALL, "--hangs", "worker-1", PACELINE_TIMEOUT_S="8") as running:
        ended = running.wait()
    assert trained_in(tmp_path, ended).summary["steps"] == 8
    limit = r"it is killed after 8 s \(PACELINE_TIMEOUT_S\)"
    waits = rf"the job is complete; waits for worker-1, \d+ s so far: its script is still in its loop; {limit}"
    assert re.search(waits, ended.out), ended.out
    killed = r"worker-1 is killed: its script is still in its loop \d+ s after the job was complete"
    assert re.search(killed, ended.out), ended.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["join", "nowhere"], "nowhere is not a run directory"),
        (["join", "over"], "the run in over has ended after 7 steps: no worker can join it"),
        (["join", "ended"], "no coordinator of ended answers: the run is not running"),
        (["scale", "nowhere", "-w", "2"], "nowhere is not a run directory"),
        (["scale", "over", "-w", "2"], "the run in over has ended and cannot be scaled"),
        (["scale", "ended", "-w", "2"], "no coordinator of ended answers"),
        (["scale", "ended"], "give --workers, --servers, --samplers or several of them"),
    ],
)
def test_join_and_scale_refuse_a_run_that_is_not_running(words: Sequence[str], named: str, tmp_path: Path) -> None:
    for name in ("over", "ended"):
        made = RunDir.create(tmp_path / name)
        made.write_plan({"script": str(SMALL)})
        made.announce("tcp://127.0.0.1:9", 1)
    (tmp_path / "over" / "summary.json").write_text('{"steps": 7}')
    done = run([*PACELINE, *words], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert "Traceback" not in done.out
