"""Trains on one file format after another: a phase for each. Sleeps in each turn until the test says hurry."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.kit.hurry import HURRY

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("root", type=Path)
parser.add_argument("--formats", default="parquet,arrow,csv,jsonl,tar,npy,images,text,windows")
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--url", default="")
parser.add_argument("--folder-url", default="")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--skip", action="store_true")
parser.add_argument("--loader-workers", type=int, default=0)
args = parser.parse_args()


def numbers(line: str) -> list[float]:
    return [float(len(word)) for word in (*line.split(), "", "", "", "", "")][:5]


def xy(name: str, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if name in ("parquet", "csv"):
        return torch.stack([batch[f"x{c}"] for c in range(4)], 1).float(), batch["y"].float()
    if name in ("arrow", "jsonl"):
        return batch["x"].float(), batch["y"].float()
    if name == "tar":
        return batch["npy"].float(), batch["json"].float()
    if name == "npy":
        return batch[:, :4].float(), batch[:, 4].float()
    if name == "images":
        return batch["image"].flatten(1)[:, :4].float() / 255, batch["label"].float()
    if name == "text":
        table = torch.tensor([numbers(line) for line in batch])
        return table[:, :4], table[:, 4]
    return batch[:, :4].float() / 128, batch[:, 4].float() / 128


ARGUMENTS: dict[str, dict[str, Any]] = {"images": {"image_size": (6, 5)}, "windows": {"window": 24, "stride": 20}}

job = paceline.join(seed=7)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
job.prepare(model, optimizer)
for name in args.formats.split(","):
    where = args.root / {"windows": "text"}.get(name, name)
    address: Any = where
    if args.url:
        files = sorted(path for path in where.rglob("*") if path.is_file())
        address = [f"{args.url}/{path.relative_to(args.root)}" for path in files]
    if args.folder_url:
        address = f"{args.folder_url}/{where.name}"
    data = paceline.data.open(address, **ARGUMENTS.get(name, {}))
    options: dict[str, Any] = {"on_bad_record": "skip", "max_bad_records": 20} if args.skip else {}
    options["loader_workers"] = args.loader_workers
    for batch in job.batches(data, 8, slots=2, epochs=args.epochs, **options):
        optimizer.zero_grad()
        x, y = xy(name, batch)
        (model(x).squeeze(1) - y).square().mean().backward()
        if args.sleep and not Path(HURRY).exists():
            time.sleep(args.sleep)
        optimizer.step()
passed = job.passed
job.close()
if not passed:  # the process has trained: it is no sampler
    sys.stdout.write(f"DIGEST {paceline.digest(model)}\n")
