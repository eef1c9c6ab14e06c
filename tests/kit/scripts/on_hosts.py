"""A script for runs on several hosts: imports a module beside it, reads a file beside it, and saves the model."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import beside  # type: ignore[import-not-found]
import torch

import paceline

job = paceline.join(seed=3)
rows = [float(line) for line in Path(__file__).with_name("rows.txt").read_text().split()]
model = beside.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.prepare(model, optimizer)
x = torch.tensor(rows).reshape(-1, 4)
data = list(zip(x, x.sum(1, keepdim=True), strict=True))
for x, y in job.batches(data, 4, slots=2, epochs=100_000):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    if "--raises" in sys.argv and job.step == 2:
        raise RuntimeError("the dog ate my gradient")
    optimizer.step()
    time.sleep(0.0 if "--quick" in sys.argv else 0.02)
job.save("saved/model.safetensors")
sys.stdout.write(f"trained on {len(rows)} rows\n")
