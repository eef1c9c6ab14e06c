"""The arguments of `job.batches`: what a loop reads, and how long it is."""

from __future__ import annotations

from typing import Any

from paceline.data.choice import Choice
from paceline.data.data_spec import Collate, DataSpec, open_data, whole_number
from paceline.errors import UsageError
from paceline.types import PhaseSpec


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
