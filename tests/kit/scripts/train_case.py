"""Train cases with Paceline: one case under `paceline run`, any number one after another in plain Python.

python -m tests.kit.scripts.train_case sgd adamw …     prints {"sgd": {"digest": …, …}, …}
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.kit.hurry import HURRY
from tests.kit.partial_pushes import PartialPort
from tests.kit.training_cases import CASES, Case, Counts

import paceline


def train(case: Case, args: argparse.Namespace, name: str) -> dict[str, Any]:
    where = None if args.dir is None else Path(args.dir) / name
    job = paceline.join(seed=7, mode=args.mode, dir=where)
    model = case.model()
    optimizer = case.optimizer(model)
    scheduler = case.scheduler(optimizer)
    job.prepare(model, optimizer, scheduler, clip_norm=case.clip_norm, scheduler_every=case.scheduler_every)
    worker = os.environ.get("PACELINE_NAME", "")
    port: Any = job._session.port
    if args.abandon or args.die_at:
        port = PartialPort(port, f"{args.abandon} {worker}", args.abandon, args.die_at.get(worker, 0))
        job._session.port = port
    jitter = random.Random(os.getpid())  # not the generator that every slot seeds
    hurry = Path(HURRY)
    turns = 0
    began = ended = 0.0
    for phase, epochs in enumerate(case.epochs):
        case.before(model, phase)
        loop = job.batches(
            case.data(),
            case.batch_size,
            slots=case.slots if args.slots is None else args.slots,
            epochs=epochs if args.epochs is None else args.epochs,
            shuffle=case.shuffle,
            drop_last=case.drop_last,
            loader_workers=args.loader_workers,
        )
        for batch in loop:
            if turns == 0:
                began = time.monotonic()
            optimizer.zero_grad()
            loss = case.loss(model, batch)
            loss.backward()
            case.after_backward(model)
            job.log(loss=loss, **case.log(model))
            time.sleep(args.jitter * jitter.random())
            optimizer.step()
            turns += 1
            ended = time.monotonic()
            if args.meet is not None:
                meet(args.meet, worker, job.step)
            if not hurry.exists():
                time.sleep(args.sleep.get(worker, 0.0))
    result = {
        "digest": paceline.digest(model),
        "steps": job.step,
        "turns": turns,
        "turns_per_s": (turns - 1) / (ended - began) if turns > 1 else 0.0,
        "norm": float(sum(p.detach().double().pow(2).sum() for p in model.parameters())),
        "counts": sorted(set(model.counts[:, :-2].flatten().tolist())) if isinstance(model, Counts) else [],
        "marks": sorted(set(model.counts[:, -2].tolist())) if isinstance(model, Counts) else [],
        "fired": {
            **getattr(port, "fired", {}),
            **{name: getattr(port, name, 0) for name in ("abandoned", "retried")},
        },
        "lr": [group["lr"] for group in optimizer.param_groups],
    }
    job.close()
    return result


def meet(file: Path, worker: str, step: int) -> None:
    """From step 3 on, worker-0 continues only after another worker has completed a turn."""
    if worker != "worker-0":
        file.touch()
    elif step >= 3:
        deadline = time.monotonic() + 60.0
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--mode", default="bsp")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--dir")
    parser.add_argument("--meet", type=Path, help="a file that another worker creates; worker-0 waits for it")
    parser.add_argument("--abandon", type=float, default=0.0, help="probability that a turn ends after a partial push")
    parser.add_argument(
        "--die-at", type=json.loads, default={}, help="the turn in which the process is killed, by worker"
    )
    parser.add_argument("--jitter", type=float, default=0.0, help="sleep up to this many seconds before each step()")
    parser.add_argument(
        "--sleep",
        type=json.loads,
        default={},
        help=f"seconds to sleep after each turn, by worker, until the file {HURRY} exists",
    )
    args = parser.parse_args()
    results = {name: train(CASES[name], args, name) for name in args.cases}
    sys.stdout.write(f"RESULT {json.dumps(results)}\n")


if __name__ == "__main__":
    torch.set_num_interop_threads(1)
    main()
