"""The scripts in examples/ run and succeed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import safetensors.torch
from tests.kit.real_runs import PACELINE, ROOT, live, python, run

EXAMPLES = ROOT / "examples"


def test_fashion_mnist_trains_in_one_process_and_saves_its_model(tmp_path: Path) -> None:
    done = python(
        EXAMPLES / "fashion_mnist.py",
        *("--steps", "20", "--data", "generated:", "--every", "10", "--save", "lenet.safetensors"),
        cwd=tmp_path,
    ).check()
    assert done.lines[0].startswith("bsp · 1 slot × 64 = batch 64 (slots not given) · 1 worker · seed 7")
    saved = safetensors.torch.load_file(tmp_path / "lenet.safetensors")
    assert saved["fc3.weight"].shape == (10, 84)


def test_tabular_stops_early_and_a_resumed_run_ends_with_the_same_model(tmp_path: Path) -> None:
    numbers = [[math.sin(3 * row + column) for column in range(4)] for row in range(800)]
    lines = [",".join(map(str, [*row, row[0] * row[1] + row[2]])) for row in numbers]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
    arguments = ["--csv", str(tmp_path / "table.csv"), "--patience", "10", "--epochs", "60"]
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    alone.mkdir()
    killed.mkdir()
    done = python(EXAMPLES / "tabular.py", *arguments, cwd=alone).check()
    with live(killed, ["--checkpoint-every", "10"], EXAMPLES / "tabular.py", *arguments) as running:
        running.until(lambda status: status.checkpoint is not None and status.checkpoint.step >= 10)
        running.process.kill()
        running.wait()
    resumed = run([*PACELINE, "run", "--resume", "run"], killed).check()
    found = [dict(line.split(None, 1) for line in ended.lines if " " in line) for ended in (done, resumed)]
    assert found[0]["stopped"] == found[1]["stopped"] == "no better model for 10 epochs"
    assert found[0]["digest"] == found[1]["digest"]
    best = [(folder / "best.safetensors").read_bytes() for folder in (alone, killed)]
    assert best[0] == best[1]


def test_char_lm_trains_on_two_workers(tmp_path: Path) -> None:
    command = [*PACELINE, "run", "-w", "2", "--dir", "lm", EXAMPLES / "char_lm.py", "--steps", "10"]
    done = run(command, tmp_path).check()
    assert "bsp · 2 slots × 32 = batch 64 (slots not given) · 2 workers · seed 7" in done.out
    summary = json.loads((tmp_path / "lm" / "summary.json").read_text())
    assert summary["steps"] == 10
    assert 0 < summary["metrics"]["bits_per_char"] < 8


def test_shards_are_written_and_trained_on(tmp_path: Path) -> None:
    python(EXAMPLES / "shards.py", "--write", cwd=tmp_path).check()
    command = [*PACELINE, "run", "-w", "2", "--dir", "run", EXAMPLES / "shards.py", "--epochs", "1"]
    run(command, tmp_path, PACELINE_CACHE=str(tmp_path / "cache")).check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["samples"], summary["bad_records"]) == (3600, 0)
