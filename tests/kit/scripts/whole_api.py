"""A script that uses all of the API: several loops, validation, evaluation, saving, stopping by `break`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tests.kit.training_cases import CLASSES, FEATURES, points
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

job = paceline.join(seed=7, dir=sys.argv[1] if len(sys.argv) > 1 else None)
model = nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, CLASSES))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=40)
job.prepare(model, optimizer, scheduler, clip_norm=1.0)
WORKER = os.environ.get("PACELINE_NAME")
test_set = points(50)
seen: dict[int, list[object]] = {}
checked: list[int] = []


@job.validate(test_set, every=3, batch_size=16)
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    checked.append(len(x))
    return {"accuracy": (model(x).argmax(1) == y).float(), "loss_test": F.cross_entropy(model(x), y)}


def train(data: object, epochs: int, end: int = 1000) -> int:
    turns = 0
    for x, y in job.batches(data, None if isinstance(data, DataLoader) else 16, slots=3, epochs=epochs):
        if job.step == end:
            break
        seen[job.step] = [dict(job.metrics), job.metrics.step]
        turns += 1
        optimizer.zero_grad(set_to_none=turns % 2 == 0)
        loss: Any = F.cross_entropy(model(x), y)
        loss.backward()
        job.log(loss=loss)
        optimizer.step()
        time.sleep(0.005)
    return turns


def wait_for(file: str) -> None:
    deadline = time.monotonic() + 60.0
    while not Path(file).exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def top1(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"top1": (model(x).argmax(1) == y).float()}


told: dict[str, object] = {}
metrics: list[dict[str, float]] = []
turns = 0
first = list(model[0].parameters())
for epoch in range(3):  # 5 steps each
    for parameter in first:
        parameter.requires_grad_(epoch != 1)
    turns += train(points(230), 1)
    told[f"loop {epoch}"] = [job.step, job.epoch, optimizer.param_groups[0]["lr"]]
    metrics.append(dict(job.metrics))
    features, classes = points(50).tensors  # another data set of the same class and length, made anew in each epoch
    turned = TensorDataset(-features, classes)
    told[f"evaluated {epoch}"] = [job.evaluate(top1, data, batch_size=25) for data in (test_set, turned)]
    job.save("last.safetensors")
    # One worker begins the second and the third loop after the other has finished them.
    if WORKER == "worker-1" and epoch == 0:
        wait_for("ahead")
    elif WORKER == "worker-1" and epoch == 2:
        Path("caught up").touch()
    elif WORKER == "worker-0" and epoch == 2:
        Path("ahead").touch()
        wait_for("caught up")
told["evaluated"] = job.evaluate(top1, test_set, batch_size=7)
turns += train(DataLoader(points(230), batch_size=16, shuffle=True), 4, end=19)  # ends the job
told["end"] = [job.step, job.epoch, optimizer.param_groups[0]["lr"]]
told["again"] = [train(points(230), 1), job.step]
told["evaluated again"] = job.evaluate(top1, test_set, batch_size=7)
told["digest"] = paceline.digest(model)
job.save("final.safetensors")
sys.stdout.write(f"RESULT {json.dumps(told)}\n")
sys.stdout.write(f"SEEN {json.dumps(seen)}\n")
sys.stdout.write(f"METRICS {json.dumps(metrics)}\n")
sys.stdout.write(f"SHARE {json.dumps([WORKER, turns, sum(checked)])}\n")
