"""Runs are listed with their states, and removed only when they do not run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.runs import _STATES, command
from paceline.engines.runs import STATES, find_run, list_runs, parse_age, remove_run
from paceline.errors import UsageError
from paceline.runtime.rundir import RunDir, point_latest


def made(root: Path, name: str, *, age_s: float = 0.0, **files: object) -> RunDir:
    """Make a run with `files`, given by the names of `RunDir`'s properties."""
    run = RunDir.create(root / name)
    run.write_plan({"script": "train.py"})
    for which, document in files.items():
        getattr(run, f"{which}_file").write_text(json.dumps(document))
    at = time.time() - age_s
    for file in run.path.iterdir():
        if file.is_file():
            os.utime(file, (at, at))
    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made(tmp_path, "done-1", age_s=3600 * 24 * 10, summary={"state": "done", "steps": 40})
    made(tmp_path, "failed-1", age_s=7200, end={"state": "ended", "code": 1, "step": 7})
    made(tmp_path, "stopped-1", age_s=60, end={"state": "ended", "code": 130, "step": 9})
    made(tmp_path, "killed-1", age_s=5)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "no-run" / "precious").write_text("x" * 100)
    point_latest(tmp_path / "failed-1")
    return tmp_path


def paceline(root: Path, *words: str, code: int = 0) -> str:
    ended = CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)
    assert ended.exit_code == code, ended.output
    return ended.output


def test_the_states_of_the_command_line_are_those_of_runs() -> None:
    assert set(_STATES) == set(STATES)


def test_runs_are_listed_the_newest_last(root: Path) -> None:
    rows = list_runs(root, time.time())
    assert [(row.name, row.state, row.step) for row in rows] == [
        ("done-1", "done", 40),
        ("failed-1", "failed", 7),
        ("stopped-1", "interrupted", 9),
        ("killed-1", "unfinished", None),
    ]
    assert rows[0].age_s == pytest.approx(864000, rel=0.01)
    assert all(row.nbytes > 60 for row in rows)


def test_how_a_resumed_run_ended_counts_more_than_its_old_summary(tmp_path: Path) -> None:
    done = {"state": "done", "steps": 40}
    made(tmp_path, "again-1", summary=done, end={"state": "ended", "code": 130, "step": 9})
    made(tmp_path, "killed-1", summary=done, end={"state": "unfinished", "reason": "the launcher was killed"})
    states = {row.name: (row.state, row.step) for row in list_runs(tmp_path, time.time())}
    assert states == {"again-1": ("interrupted", 9), "killed-1": ("unfinished", None)}


def test_the_list_is_a_table_or_json(root: Path) -> None:
    head, first, *_ = paceline(root, str(root)).splitlines()
    assert head.split() == ["name", "state", "step", "size", "age"]
    assert first.split()[:3] == ["done-1", "done", "40"]
    assert first.endswith("10 d")
    rows = json.loads(paceline(root, str(root), "--json", "--state", "failed"))
    assert [(row["name"], row["state"], row["step"]) for row in rows] == [("failed-1", "failed", 7)]
    assert paceline(root, str(root), "--older-than", "11d").strip() == f"{root}: no runs"


def test_named_runs_are_removed(root: Path) -> None:
    out = paceline(root, "--prune", "done-1", "latest", "--dir", str(root))
    assert "done-1 (done, " in out
    assert out.splitlines()[-1].startswith("2 runs removed, ")
    assert sorted(path.name for path in root.iterdir()) == ["killed-1", "no-run", "stopped-1"], (
        "the dangling link `latest` is removed too"
    )


def test_filters_choose_what_is_removed(root: Path) -> None:
    paceline(root, "--prune", "--older-than", "1h", "--state", "failed", "--dir", str(root))
    assert sorted(row.name for row in list_runs(root, time.time())) == ["done-1", "killed-1", "stopped-1"]


def test_a_live_run_is_never_removed(root: Path) -> None:
    run = made(root, "live-1", age_s=3600 * 24 * 30)
    with run.launching():
        assert next(row.state for row in list_runs(root, time.time()) if row.name == "live-1") == "running"
        with pytest.raises(UsageError, match="live-1 is running: end it first"):
            remove_run(run.path)
        out = paceline(root, "--prune", "live-1", "killed-1", "--dir", str(root), code=1)
        assert out.splitlines()[-1].startswith("1 run removed, ")
        out = paceline(root, "--prune", "--older-than", "20d", "--dir", str(root))
        assert out.startswith("0 runs removed"), "filters pass over a live run"
    assert run.path.is_dir()
    assert not (root / "killed-1").exists()


def test_a_directory_that_is_no_run_is_refused_before_anything_is_removed(root: Path) -> None:
    for name, why in (
        ("no-run", "is not a run directory"),
        ("nowhere", "there is no run nowhere"),
        ("..", "not a run"),
    ):
        with pytest.raises(UsageError, match=why):
            paceline(root, "--prune", "done-1", name, "--dir", str(root))
    with pytest.raises(UsageError, match="is not a run directory"):
        remove_run(root / "no-run")
    assert (root / "done-1").is_dir()
    assert (root / "no-run" / "precious").exists()


def test_a_run_may_be_named_by_its_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_run(Path("runs"), str(root / "done-1")) == root / "done-1"
    monkeypatch.chdir(root.parent)
    assert find_run(Path("runs"), f"{root.name}/done-1") == root / "done-1"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)]
)
def test_an_age_is_parsed_with_its_unit(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("words", [["--older-than", "old"], ["--prune"], ["a", "b"], ["/nowhere/at/all"]])
def test_wrong_options_of_the_list_are_refused(words: list[str], root: Path) -> None:
    with pytest.raises(UsageError):
        paceline(root, *words)
