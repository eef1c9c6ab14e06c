"""A small script for tests of the command line: trains a line, and misbehaves on request."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

HANGING = Path("hanging")

parser = argparse.ArgumentParser()
parser.add_argument("--no-join", action="store_true")
parser.add_argument("--samples", type=int, default=64)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--raise-at", type=int, default=-1, metavar="STEP")
parser.add_argument("--exit-at", type=int, default=-1, metavar="STEP")
parser.add_argument("--workers", type=int, default=0, help="the command line has an option of this name too")
parser.add_argument("--dies", metavar="NAME", help="this worker kills itself before it joins")
parser.add_argument("--hangs", metavar="NAME", help="this worker never comes back from a turn after the first step")
args = parser.parse_args()
if args.dies == os.environ.get("PACELINE_NAME"):
    os.kill(os.getpid(), signal.SIGKILL)
if args.no_join:
    sys.exit(0)

import torch  # noqa: E402

import paceline  # noqa: E402

job = paceline.join(seed=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.prepare(model, optimizer)
x = torch.randn(args.samples, 4, generator=torch.Generator().manual_seed(1))
data = list(zip(x, x.sum(1, keepdim=True), strict=True))


@job.validate(data, every=1000)
def error(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"error": (model(x) - y).abs().squeeze(1)}


for x, y in job.batches(data, 8, slots=2, epochs=args.epochs, loader_workers=args.loader_workers):
    if args.hangs and job.step > 0:
        while args.hangs == os.environ.get("PACELINE_NAME"):
            HANGING.touch()
            time.sleep(1.0)
        while not HANGING.exists():  # the others must not complete the job before that worker has a turn
            time.sleep(0.01)
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    job.log(loss=loss)
    if job.step == args.raise_at:
        raise RuntimeError("the dog ate my gradient")
    if job.step == args.exit_at:
        sys.exit(3)
    optimizer.step()
    time.sleep(args.sleep)

ranks = sorted(name for name in os.environ if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"))
about = {"workers": args.workers, "ranks": ranks, "threads": torch.get_num_threads(), "metrics": dict(job.metrics)}
if job.lead:
    sys.stdout.write(f"SMALL {json.dumps(about)}\n")
