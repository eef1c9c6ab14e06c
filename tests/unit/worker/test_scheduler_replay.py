"""A prepared scheduler is a function of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from paceline.worker.binding import Binding
from paceline.worker.scheduler_replay import SchedulerReplay

MAKE: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0 / (1 + step)),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=12),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, step_size_up=3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


def _numbers(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    return [(g["lr"], g["momentum"]) for g in optimizer.param_groups]


def _optimizer() -> tuple[torch.nn.Module, torch.optim.SGD]:
    model = torch.nn.Linear(2, 2)
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.02}]
    return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", MAKE)
def test_a_scheduler_can_go_to_any_step_in_any_order(name: str) -> None:
    _, plain = _optimizer()
    scheduler = MAKE[name](plain)
    expected = [_numbers(plain)]
    for _ in range(11):
        plain.step()
        scheduler.step()
        expected.append(_numbers(plain))
    assert len(set(map(str, expected))) > 2

    model, optimizer = _optimizer()
    replay = SchedulerReplay(MAKE[name](optimizer), Binding(model, optimizer, None))
    for step in (0, 3, 3, 7, 2, 0, 11, 10, 1):
        replay.seek(step)
        assert _numbers(optimizer) == expected[step], f"step {step}"
