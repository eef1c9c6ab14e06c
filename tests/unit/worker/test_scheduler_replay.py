"""A prepared scheduler is a function of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch.optim import lr_scheduler

from paceline.errors import UsageError
from paceline.types import Segment
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


SEGMENT = Segment(4, 1, 2, 0, 10, 4, 10, 2, 2, True, False, 0, "bsp")


def _replay(every: str = "step", make: str = "StepLR") -> tuple[SchedulerReplay, torch.optim.SGD]:
    model, optimizer = _optimizer()
    return SchedulerReplay(MAKE[make](optimizer), Binding(model, optimizer, None), every), optimizer


def test_a_scheduler_by_epochs_is_a_function_of_the_step() -> None:
    """Phase 1 begins with epoch 2 at step 4; an epoch has three steps."""
    replay, optimizer = _replay("epoch", "LambdaLR")
    for step, epochs in ((4, 2), (6, 2), (9, 3), (7, 3), (10, 4), (5, 2)):
        replay.begin_step(SEGMENT, step)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / (1 + epochs))
    replay.begin_step(None, 99)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 3), (
        "a worker that comes after the end of the job knows no epochs"
    )


def test_other_words_than_step_and_epoch_are_refused() -> None:
    with pytest.raises(UsageError, match='scheduler_every must be "step" or "epoch", not \'batch\''):
        _replay("batch")


def test_a_scheduler_that_raises_names_the_option() -> None:
    replay, _ = _replay(make="OneCycleLR")
    with pytest.raises(ValueError, match="Tried to step 13 times") as raised:
        replay.seek(13)
    assert any('scheduler_every="epoch"' in note for note in raised.value.__notes__)


def test_a_schedule_that_ends_long_before_its_loop_is_named_once() -> None:
    replay, _ = _replay(make="CosineAnnealingLR")
    assert replay.warning(SEGMENT) == "", "the loop ends with the schedule"
    long = msgspec.structs.replace(SEGMENT, end_step=500)
    text = replay.warning(long)
    assert text.startswith("CosineAnnealingLR ends after 10 steps, but this loop ends after 500. ")
    assert text.endswith('if it counts epochs, use job.prepare(..., scheduler_every="epoch")')
    assert replay.warning(long) == ""


def test_a_schedule_by_epochs_is_measured_in_epochs() -> None:
    replay, _ = _replay("epoch", "CosineAnnealingLR")
    assert replay.warning(msgspec.structs.replace(SEGMENT, end_step=500)) == ""
    text = replay.warning(msgspec.structs.replace(SEGMENT, end_epoch=30))
    assert "CosineAnnealingLR ends after 10 epochs, but this loop ends after 30" in text
    assert "scheduler_every" not in text


def test_a_learning_rate_that_is_low_for_most_steps_is_named() -> None:
    replay, _ = _replay()
    replay.seek(28)
    assert replay.warning(SEGMENT) == ""
    replay.seek(29)
    assert "at step 29 the learning rate is 1e-10: since step 9 it is at most 1/1000" in replay.warning(SEGMENT)


def test_a_rewind_forgets_the_low_learning_rates() -> None:
    replay, _ = _replay()
    replay.seek(40)
    replay.seek(3)
    assert replay.warning(SEGMENT) == ""
