"""The training loop of `loop_plain.py` on Paceline. `paceline run` runs this script, or it runs alone."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch.nn.functional as F
from marking import Marker
from models import data, make

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="lenet")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=0, help="end after this many steps")
parser.add_argument("--seconds", type=float, help="end this long after the warm-up, and write marks")
parser.add_argument("--warmup", type=int, default=20, help="turns")
parser.add_argument("--slow", type=float, default=1.0, help="worker-1 is this many times slower")
parser.add_argument(
    "--progress",
    type=int,
    default=0,
    help="every this many steps, write the step to a file, and end if there is OUT/end",
)
parser.add_argument("--peers", type=int, default=1, help="workers that begin together")
parser.add_argument("--out", type=Path)
args = parser.parse_args()

name = os.environ.get("PACELINE_NAME", "worker-0")
sleeps = args.slow - 1.0 if name == "worker-1" else 0.0
marker = None
if args.seconds:
    marker = Marker(args.out, name, warmup=args.warmup, seconds=args.seconds, peers=args.peers)

job = paceline.join(seed=1)
model, optimizer = make(args.model)
job.prepare(model, optimizer)
train = data()
if marker:
    marker.meet()
for x, y in job.batches(train, args.batch_size, epochs=1_000_000):
    if job.step == args.steps > 0 or (marker and not marker.mark(job.step)):
        break
    if args.progress and job.step % args.progress == 0:
        (args.out / f"{name}.step").write_text(str(job.step))
        if (args.out / "end").exists():
            job.stop()
    began = time.thread_time()
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    if sleeps:
        time.sleep(sleeps * (time.thread_time() - began))
    optimizer.step()
if marker:
    marker.save()
