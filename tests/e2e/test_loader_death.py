"""A loader process that is killed counts as the death of its worker, which starts again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.kit.real_runs import PACELINE, python, run

pytestmark = pytest.mark.real_run

SCRIPT = """
import multiprocessing, os, signal, time
from pathlib import Path
import torch, torch.nn.functional as F
import paceline

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        return torch.full((4,), i / 96) + 0.1 * torch.rand(4), i % 3

job = paceline.join(seed=7)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
loader = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=1)
for x, y in job.batches(loader, slots=2, epochs=2):
    if os.environ.get("PACELINE_NAME") == "worker-1" and job.step > 2 and not Path("killed").exists():
        Path("killed").touch()
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        time.sleep(10)
    while os.environ.get("PACELINE_NAME") == "worker-0" and job.step > 2 and not Path("killed").exists():
        time.sleep(0.01)  # this worker must not complete the job alone
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
job.save("model.safetensors")
"""


def test_a_killed_loader_process_ends_its_worker_which_starts_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    python(tmp_path / "train.py", cwd=tmp_path).check()
    expected = (tmp_path / "model.safetensors").read_bytes()
    ended = run([*PACELINE, "run", "-w", "2", "-s", "1", "--dir", "run", "train.py"], tmp_path).check()
    assert (
        "[worker-1] a loader process was killed (out of memory?), so this worker starts again: DataLoader" in ended.out
    )
    assert "worker-1 ended (exit code 3): restarted (1)" in ended.out
    assert (tmp_path / "model.safetensors").read_bytes() == expected
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["restarts"]["worker"] == 1
