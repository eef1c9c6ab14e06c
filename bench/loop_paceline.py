"""The contender: the same loop on leased slots. Run by `paceline run`, or alone."""

from __future__ import annotations

import argparse

import torch.nn.functional as F
from models import data, make

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="lenet")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

job = paceline.join(seed=1)
model, optimizer = make(args.model)
job.prepare(model, optimizer)
train = data()
for x, y in job.batches(train, args.batch_size, epochs=1_000_000):
    if job.step == args.steps:
        break
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
