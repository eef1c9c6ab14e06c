"""`python script.py`: all roles in one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.kit.real_runs import python, run_apart

SCRIPT = """
import sys, threading
import torch, paceline
job = paceline.join(seed=3, dir=sys.argv[1] or None)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
for (x,) in job.batches(data, 8, slots=2, epochs=3):
    if job.step == 1 and sys.argv[2] == "raise":
        raise RuntimeError("the dog ate my gradient")
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
assert threading.active_count() == 1, threading.enumerate()
import psutil
assert not psutil.Process().children()
print("model", paceline.digest(model))
"""


@pytest.mark.parametrize("where", ["run", ""])
def test_the_job_of_a_script_that_does_not_close_it_ends_with_a_summary(where: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = run_apart([sys.executable, "script.py", where, "go on"], tmp_path).check()
    first, *rest = ended.lines  # results only: progress goes to standard error
    rows = dict(line.split(None, 1) for line in rest)
    assert list(rows)[:3] == ["steps", "samples", "seconds"]
    assert (rows["steps"], rows["workers"], rows["servers"]) == ("6", "1", "1")
    assert first == f"model {rows['digest']}"
    assert "step 6/6" in ended.err
    assert rows.get("run", "") == where
    if where:
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert (summary["steps"], summary["stopped"], summary["digest"]) == (6, None, rows["digest"])


def test_a_script_that_raises_prints_one_traceback_and_leaves_no_summary(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python("script.py", "run", "raise", cwd=tmp_path).check(1)
    assert done.lines[-1] == "RuntimeError: the dog ate my gradient"
    assert done.out.count("Traceback") == 1
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    "opened", ["job = paceline.join(seed=3, dir=sys.argv[1] or None)", "with paceline.join() as job:"]
)
def test_ctrl_c_says_that_the_steps_are_lost_and_how_to_be_able_to_resume(opened: str, tmp_path: Path) -> None:
    script = SCRIPT.replace('raise RuntimeError("the dog ate my gradient")', "raise KeyboardInterrupt")
    before, body = script.split("job = paceline.join(seed=3, dir=sys.argv[1] or None)\n")
    indent = "    " * opened.startswith("with")
    (tmp_path / "script.py").write_text(
        f"{before}{opened}\n" + "".join(f"{indent}{line}\n" for line in body.splitlines())
    )
    done = python("script.py", "", "raise", cwd=tmp_path)
    assert done.code != 0
    (hint,) = [line for line in done.lines if line.startswith("interrupted at step 1: its steps are lost")]
    assert "`paceline run -w 1 script.py` makes them, and can be resumed" in hint
