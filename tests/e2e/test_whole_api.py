"""A script that uses the whole API prints and saves the same on a cluster as in one process."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.kit.real_runs import EARLY_END, PACELINE, TRAIN_CASE, WHOLE_API, Ended, environment, live, python, run
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
    same = ("steps", "samples", "metrics", "metric_steps", "digest", "stopped", "skipped_slots", "slots")
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


def test_metrics_in_a_loop_follow_from_the_step(results: Results) -> None:
    """A script may decide by them: in lock-step every worker sees the same at the same step, in every run (rule 8)."""
    (alone,), by_workers = results.printed("SEEN")
    assert len(alone) == 19
    for seen in by_workers:
        assert seen == {step: alone[step] for step in seen}
    steps = [found[1] for found in alone.values()]
    # Loops of 5 steps, every=3: the end of a loop is seen in the next one, version 6 at step 9, version 12 too late.
    assert steps == [-1] * 5 + [5] * 4 + [6] + [10] * 5 + [15] * 4


def test_calls_of_evaluate_share_their_names_and_the_newest_value_stays(results: Results) -> None:
    (told,), _ = results.printed("RESULT")
    summary = json.loads((results.many_dir / "run" / "summary.json").read_text())
    assert set(summary["metrics"]) == {"loss", "accuracy", "loss_test", "top1", "top1-2.top1"}
    assert summary["metrics"]["top1"] == told["evaluated again"]["top1"] != told["evaluated 0"][0]["top1"]
    assert summary["metrics"]["top1-2.top1"] == told["evaluated 2"][1]["top1"]
    assert summary["metric_steps"] == {"accuracy": 19, "loss_test": 19, "top1": 19, "top1-2.top1": 15}


def test_break_after_the_fifth_step_ends_at_step_5_alone_and_with_a_worker(tmp_path: Path) -> None:
    alone = python(EARLY_END, "break", cwd=tmp_path).check()
    one = run([*PACELINE, "run", "-w", "1", "--dir", "run", EARLY_END, "break"], tmp_path).check()
    (end, other) = (json.loads(text) for text in re.findall(r"END (.*)", alone.out + one.out))
    assert end == other
    assert end[0] == 5
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == "the script left its loop"


def test_patience_in_the_loop_ends_the_job(tmp_path: Path) -> None:
    """It counts the versions 8, 12 and 16 as bad. The last of them is seen at step 20, or later by a worker that is
    slow: each worker counts what it has seen.
    """
    many = run([*PACELINE, "run", "-w", "2", "--dir", "run", EARLY_END, "patience"], tmp_path).check()
    ends = [json.loads(text) for text in re.findall(r"END (.*)", many.out)]
    assert ends == [ends[0]] * 2
    assert ends[0][0] in range(21, 30)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == "patience"


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
        r"worker-\d began its loop number 1 .* with a data set of length [89], the job has a data set of length [89]",
        done.lines[-1],
    )
    assert "joined.fail" not in done.out, "the refused worker does not report a failure of its own"


SPLIT = """
import numpy, torch, paceline
from torch.utils.data import Subset, TensorDataset
data = Subset(TensorDataset(torch.arange(800.0).view(200, 4)), numpy.random.default_rng().permutation(200)[:160])
job = paceline.join()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
job.prepare(model, optimizer)
for (x,) in job.batches(data, 2, slots=2):
    model(x).sum().backward()
    optimizer.step()
"""


def test_workers_with_another_split_fail_the_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "split.py").write_text(SPLIT)
    done = run([*PACELINE, "run", "-w", "2", "split.py"], tmp_path).check(1)
    assert re.search(
        r"worker-\d has other data than worker-\d had in loop number 1 \(job.batches\): sample \d+ of 160 differs. .*"
        r"make a random split after paceline.join\(\)",
        done.lines[-1],
    )
