"""A reader follows each page from top to bottom: saves its files, types its commands, and sees what it shows.

`tests/kit/pages.py` says how a page tells files from commands and output. Each page has a folder of its own.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path

import pytest
from tests.kit.pages import Block, Reader, blocks, missing
from tests.kit.quick_java import quick_java
from tests.kit.real_runs import ROOT, run, warm_server

CPU_S = {
    "README.md": 50,
    "docs/tutorial.md": 30,
    "docs/recipes.md": 20,
    "docs/launch.md": 20,
    "docs/migrate.md": 8,
    "docs/ray.md": 60,
    "docs/spark.md": 60,
    "docs/serve.md": 40,
}
"""Seconds of CPU that each page may take: about four times what it takes, whoever else is busy."""

STARTED = ("README.md", "docs/ray.md", "docs/spark.md", "docs/serve.md")
"""Pages whose commands are started as a user starts them; those of the others are forked from a warm process."""

RUNS_EACH_FILE = ("docs/recipes.md", "docs/migrate.md")
"""Pages whose scripts are run by `python` one by one, though no block of commands names them all."""

NOT_RUN = {
    "pip install": "pip needs a package index; tests/e2e/test_package.py installs a wheel",
    "ray ": "it needs a cluster of several machines; tests/e2e/test_ray.py runs one on this machine",
    "paceline run --engine spark --master spark://": "a cluster that is not here; tests/e2e/test_spark.py has one",
    "spark-submit": "a cluster that is not here",
    "torchrun": "the loop of DDP that a page compares with; it is no part of Paceline",
}
"""Commands that no test runs, by their beginning, and why."""


def _not_run(block: Block) -> bool:
    lines = [line for line in block.text.splitlines() if line and not line.startswith("#")]
    found = [any(line.startswith(words) for words in NOT_RUN) for line in lines]
    assert all(found) or not any(found), f"{block.where}: keep commands that are not run in blocks of their own"
    return all(found)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", CPU_S)
def test_a_reader_can_follow_the_page(
    page: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in quick_java(tmp_path_factory.mktemp("java") / "conf").items():
        monkeypatch.setenv(name, value)
    began = _cpu_s()
    scripts = []
    with Reader(tmp_path, None if page in STARTED else warm_server()) as reader:
        for block in blocks(ROOT / page):
            if block.file is not None:
                reader.save(block)
                if "paceline.join" in block.text and "/" not in block.file:
                    scripts.append(block.file)
            elif block.language == "bash":
                if not _not_run(block):
                    reader.type(block)
            elif block.language == "text":
                reader.compare(block)
            else:
                assert block.language in ("diff", "mermaid"), f"{block.where} is neither a file nor commands nor output"
    if page in RUNS_EACH_FILE:
        _run_each(scripts, tmp_path)
    assert _cpu_s() - began + reader.cpu_s < CPU_S[page]


def _run_each(scripts: list[str], folder: Path) -> None:
    ended = run([sys.executable, ROOT / "tests" / "kit" / "warm_python.py", folder, *scripts], folder).check()
    results = [json.loads(line) for line in ended.lines if line.startswith("{")]
    assert [result["script"] for result in results] == scripts
    failed = [result for result in results if result["code"]]
    assert not failed, "\n".join(f"{result['script']}:\n{result['printed']}" for result in failed)


def test_the_examples_of_the_reference_are_one_script(tmp_path: Path) -> None:
    parts = [block.text for block in blocks(ROOT / "docs" / "reference.md") if block.language == "python"]
    (tmp_path / "reference.py").write_text("\n".join(parts))
    _run_each(["reference.py"], tmp_path)


def test_the_two_sides_of_the_diff_in_the_readme_are_a_plain_loop_and_the_script_below_it() -> None:
    readme = list(blocks(ROOT / "README.md"))
    (diff,) = [block for block in readme if block.language == "diff"]
    (script,) = [block for block in readme if block.file == "train.py"]
    lines = [line for line in diff.text.splitlines() if not line.startswith(("---", "+++", "@@"))]
    new = [line[1:].rstrip() for line in lines if line[:1] in ("+", " ")]
    old = [line[1:].rstrip() for line in lines if line[:1] in ("-", " ")]
    plain = [re.sub(r"\s+#.*", "", line) for line in script.text.splitlines()]
    assert [line for line in new if line and re.sub(r"\s+#.*", "", line) not in plain] == []
    assert "paceline" not in "\n".join(old)


def test_output_is_compared_line_by_line_in_order_without_its_numbers() -> None:
    printed = "step 3/9 · 12.5 samples/s\nwarning: lost\nsteps   9\ndigest  " + "a" * 64
    assert missing("step 4/9 · 1,200 samples/s\n…\ndigest " + "b" * 64, printed) is None
    assert missing("warning: lost\nstep 3/9 · 12.5 samples/s", printed) == "step 3/9 · 12.5 samples/s"
    assert missing("steps  9\nwarning: found", printed) == "warning: found"


def test_every_reason_not_to_run_a_command_is_needed() -> None:
    lines = [line for page in CPU_S for block in blocks(ROOT / page) for line in block.text.splitlines()]
    assert {words for words in NOT_RUN if not any(line.startswith(words) for line in lines)} == set()
