"""A resumed run needs its log: what `paceline run --resume` refuses, what it says, and that it changes nothing then."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.sheet import Sheet
from tests.kit.story import eventful
from tests.kit.told_runs import alter, content_of, overwrite, paceline, told

from paceline.engines.plan import RunPlan
from paceline.engines.resume import choose_checkpoint, resumed
from paceline.errors import StateError
from paceline.runtime.rundir import RunDir, finish_run, point_latest


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A finished run with four checkpoints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('never run here')\n")
    made = told(eventful(), tmp_path / "runs" / "train-0001")
    RunPlan(script=Path("train.py"), run=made.path).save()
    finish_run(made, '{"state": "done", "steps": 26}')
    return made


def _cut(run: RunDir) -> None:
    overwrite(run.log_file, 0, 100)


def _shorten(run: RunDir) -> None:
    alter(run, "DELETE FROM commits WHERE incarnation = 3 AND version > 24")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: run.log_file.unlink(), "log.sqlite is missing, but the checkpoints need it (the newest is i0003-"),
        (lambda run: run.log_file.write_bytes(b""), "log.sqlite is empty, but the checkpoints need it"),
        (_cut, "log.sqlite is damaged: file is not a database. Nothing was changed."),
        (_shorten, "log.sqlite ends at version 24, but the newest checkpoint is version 26. Nothing"),
    ],
    ids=["missing", "empty", "damaged", "short"],
)
def test_a_log_that_cannot_be_used_is_named_and_nothing_changes(
    spoil: Callable[[RunDir], None], said: str, run: RunDir
) -> None:
    spoil(run)
    before = content_of(run.path)
    with pytest.raises(StateError) as caught:
        paceline("run", "--resume", run.path)
    assert content_of(run.path) == before
    text = str(caught.value)
    assert text.startswith(f"{run.path} cannot be resumed: the log {run.log_file} ")
    assert said in text.replace(str(run.log_file), "log.sqlite")
    assert "Put log.sqlite back from a copy, together with log.sqlite-wal if the copy has it, or start a new" in text
    assert "--resume" not in text, "it is not advised to do what has just failed"


def test_a_run_that_committed_nothing_starts_from_the_beginning(run: RunDir) -> None:
    shutil.rmtree(run.checkpoints)
    plan, sheet = resumed(run.path, {}), Sheet()
    assert choose_checkpoint(plan, sheet).resume == ""
    run.log_file.unlink()
    assert choose_checkpoint(plan, sheet).resume == ""
    run.log_file.touch()
    assert choose_checkpoint(plan, sheet).resume == ""
    begins = "the run starts from the beginning"
    assert sheet.notes == [
        f"there is no complete checkpoint: {begins}",
        f"nothing was committed: {begins}",
        f"nothing was committed: {begins}",
    ]
    run.log_file.write_text("not a database, but text " * 100)
    with pytest.raises(StateError, match=r"cannot be resumed: the log .* is damaged"):
        choose_checkpoint(plan, sheet)


def test_damaged_checkpoints_need_the_log_too(run: RunDir) -> None:
    for marker in Path(run.checkpoints).glob("*/COMPLETE"):
        marker.write_text("?")
    run.log_file.unlink()
    with pytest.raises(StateError, match=r"log.sqlite is missing, but the checkpoints need it"):
        choose_checkpoint(resumed(run.path, {}), Sheet())


def test_the_newest_complete_checkpoint_is_chosen(run: RunDir) -> None:
    plan, sheet = resumed(run.path, {}), Sheet()
    assert choose_checkpoint(plan, sheet).resume == "i0003-v0000000026"
    assert sheet.notes == ["resuming from checkpoint i0003-v0000000026: version 26, step 26"]


def test_the_link_to_the_latest_run_names_the_run(run: RunDir) -> None:
    point_latest(run.path)
    plan = resumed(Path("runs/latest"), {})
    assert plan.run == Path("runs/train-0001")
    point_latest(plan.run)
    assert Path("runs/latest").resolve() == run.path
