"""A run goes on while its checkpoints do not fit on their disk, and ends in plain words if its own disk is full."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, ROOT, run

from paceline.errors import StateError
from paceline.runtime.rundir import replace_file

SCRIPT = ROOT / "src" / "paceline" / "testing" / "chaos" / "train.example"


def test_a_full_disk_leaves_the_old_checkpoint_and_training_goes_on(small_disk: Path, tmp_path: Path) -> None:
    """A checkpoint takes about 0.7 MB here: the second one does not fit beside the first."""
    done = run(
        [*PACELINE, "run", "-w", 2, "-s", 2, "--slots", 4, "--dir", tmp_path / "run", "--checkpoints", small_disk,
         "--checkpoint-every", 10, "--max-steps", 60, SCRIPT, "--hidden", 256, "--epochs", 100],
        tmp_path,
    ).check()  # fmt: skip
    assert "No space left on device" in done.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 60
    assert "No space left on device" in summary["warning"]
    listed = run([*PACELINE, "checkpoints", tmp_path / "run"], tmp_path).check()
    assert "v0000000010" in listed.out
    run([*PACELINE, "audit", tmp_path / "run"], tmp_path).check()


def _fill(disk: Path, left_nbytes: int) -> None:
    """Leave `left_nbytes` free on a tmpfs of 1 MiB."""
    (disk / "other").write_bytes(bytes((1 << 20) - left_nbytes))


def test_a_full_run_directory_ends_the_run_and_names_what_is_full(small_disk: Path, tmp_path: Path) -> None:
    """The log needs more than the 200 KiB that are left."""
    _fill(small_disk, 200 << 10)
    where = small_disk / "run"
    done = run(
        [*PACELINE, "run", "-w", 1, "-s", 1, "--slots", 1, "--dir", where, "--checkpoint-every", 0,
         SCRIPT, "--hidden", 4, "--epochs", 400],
        tmp_path,
    )  # fmt: skip
    assert done.code == 3, done.out
    assert "Traceback" not in done.out
    assert f"cannot write to the log {where}/log.sqlite: database or disk is full" in done.out
    assert not list(where.rglob("*.tmp"))


def test_a_file_that_cannot_be_replaced_is_named_and_leaves_no_temporary_file(small_disk: Path) -> None:
    file = small_disk / "summary.json"
    replace_file(file, "old")
    _fill(small_disk, 8 << 10)
    with pytest.raises(StateError, match=r"cannot write .*summary.json: No space left on device"):
        replace_file(file, "x" * (64 << 10))
    assert [f.name for f in small_disk.iterdir() if f.name != "other"] == ["summary.json"]
    assert file.read_text() == "old"
