"""Staleness, load balance and exactly once, in every mode, on real processes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cases import COUNTED
from tests.e2e.cluster import Trained, train
from tests.e2e.reference import expected

from paceline.coordinator.reader import LogReader
from paceline.types import Commit

SLOTS_AN_EPOCH = COUNTED // 8
"""Of the case `counts`."""


def commits_of(trained: Trained) -> list[Commit]:
    reader = LogReader(trained.dir / "log.sqlite")
    commits = reader.commits()
    reader.close()
    return commits


def logs_of(trained: Trained) -> dict[int, dict[str, float]]:
    """What was logged, by step."""
    database = sqlite3.connect(trained.dir / "log.sqlite")
    rows = database.execute("SELECT step, row FROM logs").fetchall()
    database.close()
    return {step: json.loads(row) for step, row in rows}


def workers_of(trained: Trained) -> list[dict[str, Any]]:
    return [case for result in trained.ended.results() for case in result.values()]


def check_once(trained: Trained, epochs: int, slots: int = 1) -> list[Commit]:
    """Every slot counts once, as one attempt: by the log, and by the weights that the servers made of it."""
    _initial, *commits = commits_of(trained)
    assert sorted(c.step for c in commits) == list(range(epochs * SLOTS_AN_EPOCH // slots))
    assert [c.version for c in commits] == list(range(1, len(commits) + 1))
    fences = [fence for c in commits for fence in c.fences]
    assert len(set(fences)) == len(fences)
    assert trained.summary["samples"] == epochs * COUNTED
    assert trained.digest, "every worker holds what the servers hold"
    for worker in workers_of(trained):
        assert worker["counts"] == [epochs / slots], "a sample was lost, or counted twice, in some block"
        assert len(worker["marks"]) == 1, "blocks took different attempts of one slot"
    return commits


def test_ssp_never_exceeds_its_window(tmp_path: Path) -> None:
    epochs = 32  # 2,048 steps
    sleep = json.dumps({"worker-1": 0.012})
    trained = train(
        tmp_path, ["-w", "2", "-s", "2", "--mode", "ssp:3"], "counts", "--epochs", str(epochs), "--sleep", sleep
    )
    commits = check_once(trained, epochs)
    assert len(commits) >= 2000
    assert max(c.staleness for c in commits) == trained.summary["max_staleness"]
    assert 0 < trained.summary["max_staleness"] <= 3

    # What the servers say is checked against what the workers saw: a state that contains n steps contains the first
    # n of the log, and among those must be every step below t - 3.
    missing_below = []
    committed: set[int] = set()
    low = 0
    for commit in commits:
        missing_below.append(low)
        committed.add(commit.step)
        while low in committed:
            low += 1
    missing_below.append(low)
    logs = logs_of(trained)
    assert len(logs) == len(commits)
    stale = [step - missing_below[int(row["seen"])] for step, row in logs.items()]
    assert max(stale) <= 3
    assert sum(s > 0 for s in stale) > len(stale) // 10, "hardly anything was stale: the test shows nothing"


def test_asp_does_not_wait_for_a_slow_worker(tmp_path: Path) -> None:
    """Other work on the machine can only lower the ratio, so one try of three above the bound shows the point."""
    ratios: list[float] = []
    while len(ratios) < 3 and max(ratios, default=0.0) <= 0.7:
        (tmp_path / str(len(ratios))).mkdir()
        ratios.append(_speed_beside_a_slow_worker(tmp_path / str(len(ratios))))
    assert max(ratios) > 0.7, f"held back by the slow worker it would be about 0.25: {ratios}"


def _speed_beside_a_slow_worker(tmp_path: Path) -> float:
    """Turns/s of a worker beside one that is four times slower, over its turns/s alone."""
    fast, slow = 0.005, 0.02
    rates = []
    for workers in ("1", "2"):
        sleep = json.dumps({"worker-0": fast, "worker-1": slow})
        (tmp_path / workers).mkdir()
        trained = train(
            tmp_path / workers, ["-w", workers, "--mode", "asp"], "counts", "--epochs", "6", "--sleep", sleep
        )
        check_once(trained, 6)
        rates.append(max(w["turns_per_s"] for w in workers_of(trained)))
        turns = sorted(w["turns"] for w in workers_of(trained))
    assert turns[1] / turns[0] > 1.8, "a worker that is four times as fast does far more slots"
    assert trained.summary["max_staleness"] > 0
    return float(rates[1] / rates[0])


FAULTS = {"seed": 5, "duplicate": {"Push": 0.1}, "recv_drop": {"PushAck": 0.2}}


def train_with_faults(cwd: Path, mode: str, case: str, *options: str, turn_s: float) -> Trained:
    """10 % of pushes come twice, 20 % are retried, 5 % of turns end after a partial push, and a worker dies in one.

    A push is retried after a second or two: turns take `turn_s`, so that the run lasts longer than that.
    """
    sleep = json.dumps({f"worker-{n}": turn_s for n in range(2)})
    trained = train(
        cwd,
        ["-w", "2", "-s", "2", "--mode", mode],
        *(case, "--sleep", sleep, "--abandon", "0.05", "--die-at", json.dumps({"worker-1": 20}), *options),
        PACELINE_FAULTS=json.dumps(FAULTS),
    )
    assert trained.summary["lost_workers"] == 1
    fired: dict[str, int] = {}
    for worker in workers_of(trained):
        for name, count in worker["fired"].items():
            fired[name] = fired.get(name, 0) + count
    assert fired["duplicate:Push"] > 20
    assert fired["recv_drop:PushAck"] > 20
    assert fired["retried"] > 10
    assert fired["abandoned"] > 5
    return trained


@pytest.mark.parametrize(("mode", "slots"), [("ssp:2", 1), ("asp", 1), ("ssp:1", 2)])
def test_every_slot_counts_once_whatever_happens_to_pushes(mode: str, slots: int, tmp_path: Path) -> None:
    trained = train_with_faults(tmp_path, mode, "counts", "--epochs", "8", "--slots", str(slots), turn_s=0.01)
    check_once(trained, 8, slots)


def test_lock_step_keeps_its_digest_whatever_happens_to_pushes(tmp_path: Path) -> None:
    trained = train_with_faults(tmp_path, "bsp", "norm-long", turn_s=0.03)
    commits = commits_of(trained)
    assert [c.step for c in commits] == list(range(-1, 80))
    assert trained.digest == expected("norm-long")
