"""`paceline run --mode allreduce`: workers that hold the model and sum among themselves.

Without `GLOO` in the environment the workers, which are on one host, sum by shared memory.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.kit.checked_runs import summary_of
from tests.kit.real_runs import PACELINE, SLOW, TRAIN_CASE, Live, live, run

ALLREDUCE = ["--mode", "allreduce", "--insecure-collective", "--seed", "7"]
ORDERED = [*ALLREDUCE, "--ordered"]
GLOO = {"PACELINE_LANE": "tcp"}
"""The environment of a run whose processes share no memory."""


def check_audit(cwd: Path) -> None:
    assert "audit: clean" in run([*PACELINE, "audit", "run"], cwd).check().out


@pytest.mark.parametrize(
    ("case", "options", "env"),
    [("norm", ORDERED, GLOO), ("norm", ALLREDUCE, {}), ("adamw", ORDERED, GLOO)],
    ids=["ordered", "shared memory", "ordered, adamw"],
)
def test_members_that_add_in_slot_order_train_as_one_plain_process(
    case: str, options: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    """With every kind of buffer, and an optimizer with more state."""
    ended = run([*PACELINE, "run", "--dir", "run", "-w", "3", *options, TRAIN_CASE, case], tmp_path, 90.0, **env)
    summary = summary_of(ended, tmp_path, case)
    assert (summary["workers"], summary["servers"], summary["mode"]) == (3, 0, "allreduce")
    check_audit(tmp_path)


def test_one_slot_a_rank_repeats_the_digest(tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        where = tmp_path / str(number)
        where.mkdir()
        command = [*PACELINE, "run", "--dir", "run", "-w", "3", *ALLREDUCE, TRAIN_CASE, "norm", "--slots", "3"]
        run(command, where, 90.0, **GLOO).check()
        digests.add(json.loads((where / "run" / "summary.json").read_text())["digest"])
    assert len(digests) == 1


def pids(running: Live) -> dict[str, int]:
    return {name: process.pid for name, process in running.roles().items()}


@pytest.mark.parametrize(
    ("number", "env"),
    [(signal.SIGKILL, GLOO), (signal.SIGSTOP, GLOO), (signal.SIGKILL, {})],
    ids=["killed", "stopped", "killed, shared memory"],
)
def test_the_others_go_on_without_a_member_and_take_it_back(
    number: signal.Signals, env: dict[str, str], tmp_path: Path
) -> None:
    """No other process restarts, and with ordered slots the result is that of one plain process."""
    options = ["-w", "3", *ORDERED, "--checkpoint-every", "0"]
    with live(tmp_path, options, TRAIN_CASE, "norm", "--sleep", SLOW, **env) as running:
        version = running.until_version(2).version
        before = pids(running)
        victim = running.roles()["worker-1"]
        victim.send_signal(number)
        running.until_version(version + 2)
        if number == signal.SIGSTOP:
            victim.send_signal(signal.SIGCONT)
        after = pids(running)
        assert (after["worker-0"], after["worker-2"]) == (before["worker-0"], before["worker-2"])
        running.hurry()
        ended = running.wait(60.0)
    summary = summary_of(ended, tmp_path)
    assert summary["steps"] == 12
    assert summary["rewinds"] == 0
    assert summary["failovers"] == 1
    check_audit(tmp_path)


@pytest.mark.parametrize(
    ("first", "second"), [(["--mode", "bsp", "--seed", "7"], ORDERED), (ORDERED, ["--mode", "bsp"])]
)
def test_a_run_resumes_with_the_other_reducer(first: list[str], second: list[str], tmp_path: Path) -> None:
    with live(tmp_path, ["-w", "2", *first, "--checkpoint-every", "2"], TRAIN_CASE, "norm", "--sleep", SLOW) as running:
        running.until(lambda status: status.checkpoint is not None and status.version >= 4)
        running.process.send_signal(signal.SIGTERM)
        assert running.wait(20.0).code == 143
        running.hurry()
    others = [word for word in second if word not in ("--seed", "7")]
    summary = summary_of(run([*PACELINE, "run", "--resume", "run", *others], tmp_path), tmp_path)
    assert summary["steps"] == 12
    assert summary["servers"] == (0 if second is ORDERED else 1)
    check_audit(tmp_path)
