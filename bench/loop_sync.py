"""One synchronised step on Paceline without compute: the gradients exist, the loop only calls `optimizer.step()`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from marking import Marker
from models import Matrices
from torch.utils.data import TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--mb", type=float, required=True)
parser.add_argument("--seconds", type=float, default=2.0)
parser.add_argument("--warmup", type=int, default=5)
parser.add_argument("--peers", type=int, default=1, help="workers that begin together")
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

name = os.environ.get("PACELINE_NAME", "worker-0")
marker = Marker(args.out, name, warmup=args.warmup, seconds=args.seconds, peers=args.peers)
job = paceline.join(seed=1)
model = Matrices(args.mb)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
job.prepare(model, optimizer)
gradients = [torch.full_like(p, 1e-3) for p in model.parameters()]
marker.meet()
for _ in job.batches(TensorDataset(torch.zeros(4096)), 1, epochs=1_000_000):
    if not marker.mark(job.step):
        break
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
marker.save()
