"""The training loop in plain PyTorch with one thread: one process, several independent processes, or DDP on Gloo."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from marking import Marker, leave_gloo
from models import data, make
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="lenet")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seconds", type=float, default=5.0, help="end this long after the warm-up")
parser.add_argument("--warmup", type=int, default=20, help="turns")
parser.add_argument("--slow", type=float, default=1.0, help="rank 1 is this many times slower")
parser.add_argument("--ddp", action="store_true")
parser.add_argument("--accumulate", type=int, default=1, help="batches in a turn; DDP reduces after the last one")
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
model, optimizer = make(args.model)
images, labels = data().tensors
sleeps = args.slow - 1.0 if rank == 1 else 0.0
marker = Marker(args.out, f"rank-{rank}", warmup=args.warmup, seconds=args.seconds, peers=world)


def turn(step: int) -> bool:
    """Run one turn of the loop. Returns False if its time is up."""
    more = marker.mark(step)
    optimizer.zero_grad()
    for number in range(args.accumulate):
        waits = isinstance(model, DistributedDataParallel) and number < args.accumulate - 1
        with model.no_sync() if waits else nullcontext():
            where = torch.randint(len(images), (args.batch_size,))
            began = time.thread_time()
            F.cross_entropy(model(images[where]), labels[where]).backward()
            if sleeps:
                time.sleep(sleeps * (time.thread_time() - began))
    optimizer.step()
    return more


def alone() -> None:
    """Run turns until the time is up."""
    step = 0
    while turn(step):
        step += 1


def with_others() -> None:
    """Run turns for about `--seconds`. Every rank runs the same number of turns, which rank 0 announces."""
    begun = args.warmup + 1
    for step in range(begun):
        turn(step)
    steps = torch.tensor(marker.turns_in(args.seconds))
    dist.broadcast(steps, 0)
    for step in range(begun, begun + int(steps)):
        turn(step)


marker.meet()
if args.ddp:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
    with_others()
    marker.save()
    dist.destroy_process_group()
    leave_gloo()
alone()
marker.save()
