"""Runs that were cut off as a whole, and go on."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.cluster import PACELINE, ROOT, TRAIN_CASE, Ended, Live, live, run
from tests.e2e.reference import expected

from paceline.checkpoint.manifest import folder_name
from paceline.runtime.rundir import RunDir

SMALL = ROOT / "tests" / "e2e" / "small.py"
SLOW = json.dumps({f"worker-{i}": 0.3 for i in range(8)})  # so long that a busy machine can still cut it off
STARTED = ["-w", "2", "-s", "2", "--seed", "7", "--checkpoint-every", "2"]


def cut_off(running: Live, *, checkpoints: int) -> list[Path]:
    """A power cut, as far as a process sees one: everything is killed at once, when so many checkpoints are whole."""
    running.until(lambda status: len(whole(running.dir)) >= checkpoints and status.version >= 5)
    running.process.send_signal(signal.SIGSTOP)  # nobody restarts anything
    kill_all(running)
    return whole(running.dir)


def kill_all(running: Live) -> None:
    roles = running.roles()
    for process in roles.values():
        process.kill()
    running.process.kill()
    running.process.wait()
    _, alive = psutil.wait_procs(list(roles.values()), timeout=5.0)
    assert not alive


def whole(where: Path) -> list[Path]:
    return sorted(marker.parent for marker in (where / "checkpoints").glob("*/COMPLETE"))


def resume(cwd: Path, *options: str) -> Ended:
    return run([*PACELINE, "run", "--resume", "run", *options], cwd)


def summary_of(ended: Ended, cwd: Path) -> dict[str, Any]:
    ended.check()
    summary: dict[str, Any] = json.loads((cwd / "run" / "summary.json").read_text())
    assert summary["steps"] == 12
    assert summary["digest"] == expected("norm")
    return summary


def test_a_run_that_was_cut_off_goes_on_with_another_shape(tmp_path: Path) -> None:
    with live(tmp_path, STARTED, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        kept = cut_off(running, checkpoints=1)
    ended = resume(tmp_path, "-w", "3", "-s", "1")
    summary = summary_of(ended, tmp_path)
    assert (summary["workers"], summary["servers"]) == (3, 1)
    assert f"resuming from checkpoint {kept[-1].name}" in ended.out
    assert (summary["incarnation"], summary["rewinds"]) == (1, 0)
    plan = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (plan["workers"], plan["servers"], plan["checkpoint_every"]) == (3, 1, "2")


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    with live(tmp_path, STARTED, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        kept = cut_off(running, checkpoints=2)
    shard = next(iter(sorted(kept[-1].glob("*.safetensors"))))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    incomplete = kept[-1].with_name(folder_name(0, 99))
    incomplete.mkdir()
    ended = resume(tmp_path)
    summary_of(ended, tmp_path)
    assert f"warning: checkpoint {incomplete.name} cannot be used: incomplete: COMPLETE is missing" in ended.out
    assert ended.out.count(incomplete.name) == 1, "it is named once"
    assert f"warning: checkpoint {kept[-1].name} cannot be used: {shard.name} is damaged" in ended.out
    assert f"resuming from checkpoint {kept[-2].name}" in ended.out


def test_a_run_without_a_checkpoint_begins_from_nothing(tmp_path: Path) -> None:
    options = ["-w", "1", "--seed", "7", "--checkpoint-every", "0"]
    with live(tmp_path, options, TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until_version(3)
        still = run([*PACELINE, "run", "--resume", "run"], tmp_path, timeout_s=20).check(2)
        assert "run is running: end it first" in still.lines[-1]
        running.process.send_signal(signal.SIGINT)
        assert running.wait(10.0).code == 130
    ended = resume(tmp_path)
    summary_of(ended, tmp_path)
    assert "there is no whole checkpoint: starting from nothing" in ended.out


def test_a_run_goes_on_with_what_was_wanted_last_though_its_launcher_never_heard_of_it(tmp_path: Path) -> None:
    options = ["-w", "1", "-s", "1", "--checkpoint-every", "0"]
    with live(tmp_path, options, SMALL, "--epochs", "1000", "--sleep", "0.02") as running:
        running.until_version(1)
        running.process.send_signal(signal.SIGSTOP)
        run([*PACELINE, "scale", "run", "-w", "2"], tmp_path, timeout_s=20).check()
        run([*PACELINE, "scale", "run", "-s", "3"], tmp_path, timeout_s=20).check()
        kill_all(running)
    ended = resume(tmp_path, "-s", "2", "--max-steps", "5").check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["workers"], summary["servers"]) == (2, 2), "the command line goes over what was wanted"
    assert "wanted instead of" not in ended.out, "they are there from the start"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--threads", "2"], "--threads 2: run has 1, and that is part of its result"),
        (["--seed", "8"], "--seed 8: run has 7"),
        (["--mode", "asp"], "--mode asp: run has bsp"),
        (["--slots", "3"], "--slots 3: run leaves it to its script"),
        (["--checkpoints", "elsewhere"], "--checkpoints elsewhere: those of run are in"),
        (["--dir", "other"], "--dir other: a run that is resumed stays in its own directory"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["gone.py"], "gone.py is not a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_resumed_run_refuses(options: Sequence[str], named: str, tmp_path: Path) -> None:
    made = RunDir.create(tmp_path / "run")
    made.write_plan({"script": str(SMALL), "threads": 1, "seed": 7, "mode": "bsp", "slots": None})
    made.announce("tcp://127.0.0.1:9", 1)
    done = run([*PACELINE, "run", "--resume", "run", *options], tmp_path, timeout_s=20).check(2)
    assert named in done.lines[-1]
    assert "Traceback" not in done.out


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run([*PACELINE, "run", "--resume", "empty"], tmp_path, timeout_s=20).check(2)
    assert "empty is not a run directory" in done.lines[-1]
    RunDir.create(tmp_path / "embedded")
    done = run([*PACELINE, "run", "--resume", "embedded"], tmp_path, timeout_s=20).check(2)
    assert "embedded was not started by `paceline run`" in done.lines[-1]
