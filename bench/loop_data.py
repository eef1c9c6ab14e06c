"""A training loop on costly input: on Paceline (by `paceline run`), or plain with a DataLoader or without."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from inputs import DATA, network
from marking import Marker
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=DATA, default="jpeg")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--plain", choices=("train", "prepare", "loader"), help="without Paceline")
parser.add_argument("--seconds", type=float, default=4.0)
parser.add_argument("--warmup", type=int, default=8)
parser.add_argument("--peers", type=int, default=1)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

name = os.environ.get("PACELINE_NAME", "rank-0")
is_worker = not name.startswith("sampler")
torch.set_num_threads(1)
data: Any = DATA[args.data]()


def turn(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """Forward, backward, and the step."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def alone() -> None:
    """Measure the processor seconds of a sample: of training, or of preparation."""
    model, optimizer = network(args.width)
    order = torch.randperm(1 << 12).tolist()
    x, y = torch.utils.data.default_collate([DATA["ready"]()[i] for i in range(args.batch_size)])

    def once(number: int) -> None:
        if args.plain == "train":
            turn(model, optimizer, x, y)
        else:
            begin = number * args.batch_size % 3000
            torch.utils.data.default_collate([data[i] for i in order[begin : begin + args.batch_size]])

    for number in range(args.warmup):
        once(number)
    began, end, number = time.process_time(), time.monotonic() + args.seconds, 0
    while time.monotonic() < end:
        once(number)
        number += 1
    used = (time.process_time() - began) / (number * args.batch_size)
    (args.out / f"{name}.marks.json").write_text(json.dumps([[number, used]]))


def loader() -> None:
    """The plain loop on a DataLoader."""
    model, optimizer = network(args.width)
    marker = Marker(args.out, name, warmup=args.warmup, seconds=args.seconds)
    loaded = DataLoader(data, args.batch_size, shuffle=True, num_workers=args.loader_workers)
    for step, (x, y) in enumerate(loaded):
        if not marker.mark(step):
            break
        turn(model, optimizer, x, y)
    marker.save()


def on_paceline() -> None:
    """The same loop on Paceline."""
    import paceline

    job = paceline.join(seed=1)
    model, optimizer = network(args.width)
    job.prepare(model, optimizer)
    marker = Marker(args.out, name, warmup=args.warmup, seconds=args.seconds, peers=args.peers)
    if is_worker:
        marker.meet()
    for x, y in job.batches(data, args.batch_size, epochs=1_000, loader_workers=args.loader_workers):
        if not marker.mark(job.step):
            break
        turn(model, optimizer, x, y)
    if is_worker:
        marker.save()


if args.plain == "loader":
    loader()
elif args.plain:
    alone()
else:
    on_paceline()
