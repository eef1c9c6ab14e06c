"""A schedule that counts epochs and is stepped after each step is found; schedules in common use are not."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from paceline.worker.schedule_end import LowRates, declared_end

STEPS = 9000  # 90 epochs of 100 steps


def _warned_at(rate: Callable[[int], float], steps: int = STEPS) -> int | None:
    low = LowRates([rate(0)])
    for step in range(1, steps + 1):
        low.note([rate(step)])
        if low.used_up_since is not None:
            return step
    return None


COMMON: dict[str, Callable[[int], float]] = {
    "constant": lambda t: 0.1,
    "cosine": lambda t: 0.05 * (1 + cos(pi * t / STEPS)),
    "linear": lambda t: 0.1 * (1 - t / STEPS),
    "cubic": lambda t: 0.1 * (1 - t / STEPS) ** 3,
    "steps at 30, 60 and 80 epochs": lambda t: 0.1 * 0.1 ** sum(t >= m for m in (3000, 6000, 8000)),
    "exponential to 1e-5": lambda t: 0.1 * 1e-5 ** (t / STEPS),
    "warm-up from 0": lambda t: min(1.0, t / 500) * 0.1,
    "warm restarts": lambda t: 0.05 * (1 + cos(pi * (t % 1000) / 1000)),
    "inverse root": lambda t: 0.1 * min(t / 400, (400 / max(t, 1)) ** 0.5),
    "zero": lambda t: 0.0,
}


@pytest.mark.parametrize("name", COMMON)
def test_a_schedule_in_common_use_is_not_named(name: str) -> None:
    assert _warned_at(COMMON[name]) is None


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (lambda t: 0.1 * 0.1 ** (t // 30), 180),  # StepLR(30): low from step 90 on
        (lambda t: 0.1 * 0.1 ** sum(t >= m for m in (30, 60, 80)), 160),
        (lambda t: 0.1 * 0.95**t, 270),
        (lambda t: 0.1 * max(0.0, 1 - t / 5), 25),
    ],
)
def test_a_schedule_of_epochs_is_named_after_as_many_steps_as_it_took(
    rate: Callable[[int], float], expected: int
) -> None:
    assert _warned_at(rate) == expected


def test_every_param_group_must_be_low() -> None:
    low = LowRates([0.1, 0.1])
    for _ in range(100):
        low.note([1e-9, 0.1])
    assert low.used_up_since is None
    for _ in range(102):
        low.note([1e-9, 1e-9])
    assert low.used_up_since == 101


def _made(make: Callable[[torch.optim.Optimizer], Any]) -> Any:
    return make(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 10), ("CosineAnnealingLR", 10, 20)),
        (lambda o: lr_scheduler.MultiStepLR(o, [30, 80]), ("MultiStepLR", 80, 800)),
        (
            lambda o: lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 10)], [5]
            ),
            ("CosineAnnealingLR", 15, 25),
        ),
        (lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5), None),
        (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 10), None),
        (lambda o: lr_scheduler.LambdaLR(o, lambda t: 1.0), None),
    ],
)
def test_the_end_of_a_schedule_is_read_from_the_scheduler(
    make: Callable[[torch.optim.Optimizer], Any], expected: tuple[str, int, int] | None
) -> None:
    assert declared_end(_made(make)) == expected
