"""A model whose output tells its version: after v steps every weight is v. Output: the least and the largest weight."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tests.kit.hurry import HURRY
from torch.utils.data import TensorDataset

import paceline


class Probe(torch.nn.Module):
    """Several blocks, so that two servers share it. Some blocks never change."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(numel))
        self.frozen = torch.nn.Parameter(torch.ones(30_000), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        told = torch.stack([self.weight.min(), self.weight.max(), self.frozen.mean()])
        return x + told


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--numel", type=int, default=200_000)
    args = parser.parse_args()
    job = paceline.join(seed=3)
    job.servable(lambda: Probe(args.numel), torch.zeros(1, 3))
    model = Probe(args.numel)
    optimizer = torch.optim.SGD([model.weight], lr=1.0)
    job.prepare(model, optimizer)
    for (x,) in job.batches(TensorDataset(torch.zeros(64, 3)), 4, slots=1, steps=args.steps):
        optimizer.zero_grad()
        (x.sum() - model.weight.sum()).backward()  # every gradient is -1
        if args.sleep and not Path(HURRY).exists():
            time.sleep(args.sleep)
        optimizer.step()


if __name__ == "__main__":
    main()
