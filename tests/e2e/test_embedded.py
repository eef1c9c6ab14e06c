"""`python script.py`: all roles in one process."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.real_runs import python

SCRIPT = """
import sys, threading
import torch, paceline
job = paceline.join(seed=3, dir=sys.argv[1])
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
"""


def test_the_job_of_a_script_that_does_not_close_it_ends_with_a_summary(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    python("script.py", "run", "go on", cwd=tmp_path).check()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 6
    assert summary["stopped"] is None


def test_a_script_that_raises_prints_one_traceback_and_leaves_no_summary(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python("script.py", "run", "raise", cwd=tmp_path).check(1)
    assert done.lines[-1] == "RuntimeError: the dog ate my gradient"
    assert done.out.count("Traceback") == 1
    assert not (tmp_path / "run" / "summary.json").exists()
