"""The scripts of bench/start.py: both sides of the README's diff, with a line that notes the first step."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.kit.bench_modules import BENCH, load
from tests.kit.pages import blocks

harness, start = load("harness"), load("start")
README = BENCH.parent / "README.md"


def test_the_plain_script_has_every_line_of_the_old_side_of_the_diff() -> None:
    (diff,) = [block.text for block in blocks(README) if block.language == "diff"]
    old = {line[1:].strip() for line in diff.splitlines() if line[:1] in ("-", " ")}
    plain = {line.partition("  #")[0].strip() for line in start.PLAIN.read_text().splitlines()}
    assert old - plain == set()
    assert "paceline" not in start.PLAIN.read_text().partition('"""\n')[2]


def test_both_scripts_train_on_the_same_data() -> None:
    def made(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(("x = ", "y = ", "train_set", "model =", "opt"))]

    assert made(start.readme_script()) == made(start.PLAIN.read_text())
    assert len(made(start.readme_script())) == 5


def test_the_script_of_the_readme_notes_a_step_behind_it_at_the_top_of_its_loop(tmp_path: Path) -> None:
    text = start.noted(start.readme_script(), "for x, y in job.batches", "job.step and _note()", tmp_path)
    lines = text.splitlines()
    loop = next(number for number, line in enumerate(lines) if line.startswith("for x, y in job.batches"))
    assert lines[loop + 1] == "    job.step and _note()"
    assert "epochs=1)" in lines[loop]
    compile(text, "train.py", "exec")


def test_only_the_first_call_is_noted(tmp_path: Path) -> None:
    script = "for epoch in range(20):\n    pass\n    time.sleep(0.3)\n    _note()\n"
    began = time.perf_counter()
    text = start.noted(script, "pass", "_note()", tmp_path)
    subprocess.run([sys.executable, "-c", text], check=True)
    ended = time.perf_counter()
    assert 0 < start.first_s(tmp_path, began) < ended - began - 0.3


def test_the_earliest_process_counts(tmp_path: Path) -> None:
    with pytest.raises(harness.ContenderError, match="without a step"):
        start.first_s(tmp_path, 0.0)
    (tmp_path / "7.first").write_text("12.5")
    (tmp_path / "8.first").write_text("11.5")
    assert start.first_s(tmp_path, 10.0) == pytest.approx(1.5)


def test_a_script_that_changed_is_an_error_and_not_a_wrong_figure(tmp_path: Path) -> None:
    with pytest.raises(harness.ContenderError, match="0 lines 'train'"):
        start.noted("for epoch in range(20):\n    pass\n", "train", "_note()", tmp_path)
    with pytest.raises(harness.ContenderError, match="0 numbers of epochs"):
        start.noted("for epoch in range(30):\n    pass\n", "pass", "_note()", tmp_path)
