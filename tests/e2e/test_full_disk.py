"""A run whose checkpoints no longer fit on their disk warns, keeps the old checkpoint, and trains on."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.real_runs import PACELINE, ROOT, run

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
