"""The scripts in examples/ run and succeed."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
from tests.kit.real_runs import PACELINE, ROOT, python, run

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


def test_char_lm_trains_on_two_workers(tmp_path: Path) -> None:
    command = [*PACELINE, "run", "-w", "2", "--dir", "lm", EXAMPLES / "char_lm.py", "--steps", "10"]
    done = run(command, tmp_path).check()
    assert "bsp · 2 slots × 32 = batch 64 (slots not given) · 2 workers · seed 7" in done.out
    summary = json.loads((tmp_path / "lm" / "summary.json").read_text())
    assert summary["steps"] == 10
    assert 0 < summary["metrics"]["bits_per_char"] < 8
