"""A script that uses the whole API prints and saves the same on a cluster as in one process."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.kit.real_runs import PACELINE, TRAIN_CASE, WHOLE_API, Ended, environment, live, python, run
from tests.kit.reference_training import expected
from tests.kit.roles import command, worker

from paceline.runtime.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Results:
    """The same script in one process and on a cluster, with their working directories."""

    alone: Ended
    many: Ended
    alone_dir: Path
    many_dir: Path

    def printed(self, word: str) -> tuple[list[Any], list[Any]]:
        """The values printed after `word`: by the single process, and by each worker."""
        one, many = ([json.loads(t) for t in re.findall(rf"{word} (.*)", e.out)] for e in (self.alone, self.many))
        return one, many


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    alone, many = tmp_path_factory.mktemp("alone"), tmp_path_factory.mktemp("many")
    one = python(WHOLE_API, "run", cwd=alone).check()
    all_ = run([*PACELINE, "run", "-w", "2", "-s", "2", "--dir", "run", WHOLE_API], many).check()
    return Results(one, all_, alone, many)


def test_everything_a_script_sees_is_the_same_on_a_cluster(results: Results) -> None:
    (seen,), by_workers = results.printed("RESULT")
    assert by_workers == [seen, seen]
    assert seen["again"] == [0, 19]
    summary, of_one = (
        json.loads((p / "run" / "summary.json").read_text()) for p in (results.many_dir, results.alone_dir)
    )
    same = ("steps", "samples", "metrics", "digest", "stopped", "skipped_slots", "slots")
    assert {key: summary[key] for key in same} == {key: of_one[key] for key in same}
    assert summary["digest"] == seen["digest"]
    assert summary["steps"] == 19


def test_the_saved_files_are_the_same(results: Results) -> None:
    for name in ("last.safetensors", "final.safetensors"):
        assert (results.many_dir / name).read_bytes() == (results.alone_dir / name).read_bytes()
    last, final = ((results.many_dir / f"{name}.safetensors").read_bytes() for name in ("last", "final"))
    assert last != final


def test_the_workers_share_the_slots(results: Results) -> None:
    ((_, _, checked_alone),), shares = results.printed("SHARE")
    assert sorted(name for name, _, _ in shares) == ["worker-0", "worker-1"]
    assert all(turns > 0 for _, turns, _ in shares)
    assert sum(checked for _, _, checked in shares) == checked_alone, "each validation slot is computed once"


def test_every_worker_sees_the_metrics_of_the_phase_that_it_left(results: Results) -> None:
    (seen,), by_workers = results.printed("METRICS")
    assert by_workers == [seen, seen]


def test_a_worker_that_joins_late_ends_with_the_same_result(tmp_path: Path) -> None:
    arguments = ["toggled", "--meet", str(tmp_path / "met")]
    with live(tmp_path, ["-w", "1"], TRAIN_CASE, *arguments) as running:
        running.until_version(3)  # the first of three loops has ended
        spec = worker(RunDir(running.dir), TRAIN_CASE, *arguments, name="worker-late")
        late = subprocess.Popen(
            command(RunDir(running.dir), spec),
            env=environment(PACELINE_NAME="worker-late"),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            said, _ = late.communicate(timeout=60)
        finally:
            late.kill()
            late.wait()
        ended = running.wait()
    assert ended.code == 0, ended.out
    assert late.returncode == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    result = json.loads(re.findall(r"RESULT (.*)", said)[0])["toggled"]
    assert result["digest"] == summary["digest"]
    assert result["turns"] > 0
    assert summary["digest"] == expected("toggled")


DISAGREE = """
import os, torch, paceline
job = paceline.join()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
count = 8 if os.environ["PACELINE_NAME"] == "worker-0" else 9
data = torch.utils.data.TensorDataset(torch.randn(count, 4))
for (x,) in job.batches(data, 2, slots=2):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


def test_workers_that_disagree_fail_the_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "disagree.py").write_text(DISAGREE)
    done = run([*PACELINE, "run", "-w", "2", "disagree.py"], tmp_path).check(1)
    assert re.search(
        r"worker-\d called batches\(\) number 0 with data_len=[89], others with data_len=[89]", done.lines[-1]
    )
    assert "joined.fail" not in done.out, "the refused worker does not report a failure of its own"
