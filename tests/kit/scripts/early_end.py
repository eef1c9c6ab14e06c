"""A loop that ends early: `patience` stops on the metrics of validation, `break` leaves after the fifth `step()`."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn.functional as F
from tests.kit.training_cases import CLASSES, FEATURES, points
from torch import nn

import paceline

how = sys.argv[1]
job = paceline.join(seed=7)
model = nn.Linear(FEATURES, CLASSES)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)


@job.validate(points(20), every=4)
def check(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    return {"score": 1.0}  # it never gets better


best, bad, newest = 0.0, 0, -1
for turn, (x, y) in enumerate(job.batches(points(230), 16, slots=2 if how == "patience" else 1, epochs=20)):
    if how == "patience" and job.metrics.step > newest:
        newest = job.metrics.step
        bad = 0 if job.metrics["score"] > best else bad + 1
        best = max(best, job.metrics["score"])
        if bad == 3:
            job.stop("patience")
    optimizer.zero_grad()
    loss: Any = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if how == "break" and turn == 4:
        break
sys.stdout.write(f"END {json.dumps([job.step, paceline.digest(model)])}\n")
