"""Checks of a whole real run: every slot counted once, and the weights are those of plain PyTorch."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from tests.kit.real_runs import Ended, Trained
from tests.kit.reference_training import expected
from tests.kit.training_cases import COUNTED

from paceline.coordinator.reader import LogReader
from paceline.types import Commit

SLOTS_AN_EPOCH = COUNTED // 8
"""Slots in one epoch of the case `counts`."""


def commits_of(trained: Trained) -> list[Commit]:
    """The rows of the commit log."""
    reader = LogReader(trained.dir / "log.sqlite")
    commits = reader.commits()
    reader.close()
    return commits


def logs_of(trained: Trained) -> dict[int, dict[str, float]]:
    """The logged values, by step."""
    database = sqlite3.connect(trained.dir / "log.sqlite")
    rows = database.execute("SELECT step, row FROM logs").fetchall()
    database.close()
    return {step: json.loads(row) for step, row in rows}


def workers_of(trained: Trained) -> list[dict[str, Any]]:
    """The result of each worker."""
    return [case for result in trained.ended.results() for case in result.values()]


def check_once(trained: Trained, epochs: int, slots: int = 1) -> list[Commit]:
    """Check that every slot counts once, as one attempt: in the log, and in the weights that the servers computed."""
    _initial, *commits = commits_of(trained)
    assert sorted(c.step for c in commits) == list(range(epochs * SLOTS_AN_EPOCH // slots))
    assert [c.version for c in commits] == list(range(1, len(commits) + 1))
    fences = [fence for c in commits for fence in c.fences]
    assert len(set(fences)) == len(fences)
    assert trained.summary["samples"] == epochs * COUNTED
    assert trained.digest, "every worker holds the final version"
    for worker in workers_of(trained):
        assert worker["counts"] == [epochs / slots], "some block lost a sample or counted it twice"
        assert len(worker["marks"]) == 1, "blocks used different attempts of one slot"
    return commits


def summary_of(ended: Ended, cwd: Path, case: str = "norm") -> dict[str, Any]:
    """Return the summary of a successful run of `case`; check that all weights equal those of plain PyTorch."""
    ended.check()
    summary: dict[str, Any] = json.loads((cwd / "run" / "summary.json").read_text())
    assert summary["digest"] == expected(case)
    for result in ended.results():
        assert result[case]["digest"] == summary["digest"]
    return summary
