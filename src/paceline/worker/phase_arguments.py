"""The arguments of `job.batches` and `job.log`, checked, as the loop needs them."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from paceline.data.choice import Choice
from paceline.data.data_spec import Collate, DataSpec, open_data, whole_number
from paceline.errors import LoopError, UsageError
from paceline.types import PhaseSpec
from paceline.worker.loop import Loop
from paceline.worker.loop_hint import line_to_write

Otherwise = TypeVar("Otherwise")


def phase_arguments(
    number: int,
    data: Any,
    batch_size: int | None,
    *,
    slots: int | None,
    epochs: int,
    steps: int | None,
    shuffle: bool | str,
    collate_fn: Collate | None,
    drop_last: bool,
    loader_workers: int,
    choice: Choice,
) -> tuple[DataSpec, PhaseSpec]:
    """The data of loop number `number`, and its phase.

    Raises:
        UsageError: an argument is out of range, or the data cannot be read by position.
    """
    slots = None if slots is None else whole_number("slots", slots)
    if slots is not None and slots < 1:
        raise UsageError(f"slots must be at least 1, not {slots}")
    epochs = whole_number("epochs", epochs)
    if epochs < 0:
        raise UsageError(f"epochs must be 0 or more, not {epochs}")
    spec = open_data(
        data,
        batch_size,
        shuffle=shuffle,
        collate_fn=collate_fn,
        drop_last=drop_last,
        loader_workers=loader_workers,
        choice=choice,
    )
    order = spec.order
    phase = PhaseSpec(
        number,
        spec.length,
        spec.batch_size,
        slots,
        epochs,
        order.shuffle,
        spec.drop_last,
        _steps(steps, epochs),
        order.block_size,
        order.block_window,
        order.weights,
    )
    return spec, phase


def _steps(steps: int | None, epochs: int) -> int:
    """The number of steps that a loop is limited to; 0 if it has whole epochs.

    Raises:
        UsageError: the number cannot be, or `epochs` is given, too.
    """
    if steps is None:
        return 0
    steps = whole_number("steps", steps)
    if steps < 1:
        raise UsageError(f"steps must be at least 1, not {steps}")
    if epochs != 1:
        raise UsageError(f"steps={steps} and epochs={epochs} both say where the loop ends: give one of them")
    return steps


def log_values(loop: Loop | None, values: Mapping[str, Any]) -> None:
    """Record the numbers of `job.log` in the turn of `loop`.

    Raises:
        LoopError: there is no turn, or it is sealed.
        UsageError: a value is not one number.
    """
    if loop is None or loop.turn.grant is None:
        raise LoopError(f"job.log() outside of a turn: the job hands out the batches. Write `{line_to_write()}`")
    if not loop.turn.is_open:
        raise LoopError("job.log() after optimizer.step(): call it before, since step() sends the logged values")
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            loop.turn.log(name, value)
        elif isinstance(value, numbers.Real):
            loop.turn.log(name, float(value))
        else:
            raise UsageError(f"log({name}=…) takes one number, not {value!r}")


def step_in_hand(loop: Loop | None, otherwise: Otherwise) -> int | Otherwise:
    """The step of the slot that this worker computes now; `otherwise` outside of a turn."""
    grant = None if loop is None else loop.turn.grant
    return otherwise if grant is None else grant.step
