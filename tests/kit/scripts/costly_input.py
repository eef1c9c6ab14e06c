"""Trains on samples that draw random numbers, for tests of samplers. Its samples sleep, unless the test hurries."""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--sleep", type=float, default=0.0, help="of each turn, until there is a file `hurry`")
parser.add_argument("--loader-workers", type=int, default=0)
args = parser.parse_args()


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, i: int) -> dict[str, Any]:
        x = torch.randn(4) + random.random() + float(np.random.rand())
        return {"x": x, "y": x.sum().view(1) / 4 + i % 2}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = torch.utils.data.default_collate(samples)
    batch["x"] += 0.1 * torch.randn(len(samples), 1)
    return batch


job = paceline.join(seed=11)
data = Drawn()
model = torch.nn.Linear(4, 1)
job.prepare(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


@job.validate(data, every=20)
def error(model: torch.nn.Module, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"error": (model(batch["x"]) - batch["y"]).abs().squeeze(1)}


for epochs in (args.epochs, 1):
    for batch in job.batches(data, 6, slots=4, epochs=epochs, collate_fn=collate, loader_workers=args.loader_workers):
        optimizer.zero_grad()
        batch["x"].mul_(1.0)  # the batch belongs to the script
        loss = (model(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        job.log(loss=loss)
        optimizer.step()
        if not Path("hurry").exists():
            time.sleep(args.sleep)
    found = job.evaluate(error, data)
    if not job.metrics:
        raise AssertionError("the results of validation are known after a loop")
job.save("model.safetensors")
print(f"ENDED {found['error']:.6f} {job.lead}")
