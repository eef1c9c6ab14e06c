"""A line to fit: the smallest script, for tests that join in their own process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset

import paceline


def points(count: int = 32) -> TensorDataset:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(1, keepdim=True))


def line() -> tuple[torch.nn.Linear, torch.optim.SGD]:
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def error(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Return the loss, untyped: torch leaves `backward` without types."""
    return (model(x) - y).square().mean()


def prepared(**options: Any) -> tuple[paceline.Job, torch.nn.Linear, torch.optim.SGD]:
    """Return a prepared job in this process that fits a line; the caller closes it."""
    job = paceline.join(seed=3, **options)
    model, optimizer = line()
    job.prepare(model, optimizer)
    return job, model, optimizer


def weights(model: torch.nn.Module) -> list[float]:
    return [float(v) for p in model.parameters() for v in p.detach().flatten()]


def through(iterable: Any) -> Iterator[Any]:
    """Iterate as a progress bar does."""
    yield from iterable


def one_by_one(iterable: Any) -> Iterator[Any]:
    for item in iterable:  # noqa: UP028 - the other way of writing it
        yield item
