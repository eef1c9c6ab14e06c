"""Peers of `loop_sync.py`: Gloo's all-reduce plus the optimizer on each rank, and a bare copy of the parameters.

All gradients are in one flat tensor, the best case for all-reduce. `buckets` cuts it as DDP does. The process writes
marks for each size and variant.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from marking import Marker, leave_gloo
from models import Matrices

BUCKET_MB = 25.0

parser = argparse.ArgumentParser()
parser.add_argument("--mb", type=float, nargs="+", required=True)
parser.add_argument("--seconds", type=float, default=2.0)
parser.add_argument("--warmup", type=int, nargs="+", required=True, help="turns, for each size")
parser.add_argument("--copy", action="store_true", help="measure a copy, alone")
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def synchroniser(flat: torch.Tensor, buckets: list[torch.Tensor], mb: float) -> Callable[[], None]:
    """A function that makes one step: the mean of all ranks' gradients, then the optimizer."""
    parameters = list(Matrices(mb).parameters())
    for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter)
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    def synchronise() -> None:
        works = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
        for work, bucket in zip(works, buckets, strict=True):
            work.wait()
            bucket.div_(world)
        optimizer.step()

    return synchronise


def copier(flat: torch.Tensor) -> Callable[[], None]:
    """A function that copies `flat` once, which shows the limit of the memory."""
    target = torch.zeros_like(flat)

    def copy() -> None:
        target.copy_(flat)

    return copy


def repeat(turn: Callable[[], None], name: str, warmup: int, seconds: float) -> None:
    """Run turns for about `seconds`, the same number on every rank."""
    marker = Marker(args.out, f"{name}.rank-{rank}", warmup=warmup, seconds=seconds)
    for step in range(warmup + 1):
        marker.mark(step)
        turn()
    steps = torch.tensor(marker.turns_in(seconds))
    if world > 1:
        dist.broadcast(steps, 0)
    for step in range(warmup + 1, warmup + 1 + int(steps)):
        marker.mark(step)
        turn()
    marker.save()


if world > 1:
    dist.init_process_group("gloo")
for mb, warmup in zip(args.mb, args.warmup, strict=True):
    flat = torch.full((int(mb * 1e6 / 4),), 1e-3)
    if args.copy:
        repeat(copier(flat), f"copy-{mb:g}", warmup, args.seconds)
    else:
        repeat(synchroniser(flat, [flat], mb), f"flat-{mb:g}", warmup, args.seconds)
        if mb > BUCKET_MB:
            cut = list(flat.split(int(BUCKET_MB * 1e6 / 4)))
            repeat(synchroniser(flat, cut, mb), f"buckets-{mb:g}", warmup, args.seconds)
if world > 1:
    dist.destroy_process_group()
    leave_gloo()
