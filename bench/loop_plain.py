"""Peers: the plain PyTorch loop with one thread, alone or under DDP on Gloo. Prints samples/s as JSON."""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import data, make
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="lenet")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--start-at", type=float, default=0.0, help="wait until this time, so that peers start together")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(1)
model, optimizer = make(args.model)
rank = int(os.environ.get("RANK", "0"))
if args.ddp:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
images, labels = data().tensors
count = len(images)


def run(steps: int) -> None:
    """Train for some steps."""
    for _ in range(steps):
        where = torch.randint(count, (args.batch_size,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[where]), labels[where]).backward()
        optimizer.step()


run(max(5, args.steps // 20))
if args.ddp:
    dist.barrier()
while time.time() < args.start_at:
    time.sleep(0.001)
began = time.perf_counter()
run(args.steps)
if args.ddp:
    dist.barrier()
seconds = time.perf_counter() - began
print(json.dumps({"samples_per_s": args.steps * args.batch_size / seconds, "rank": rank}))
if args.ddp:
    dist.destroy_process_group()
