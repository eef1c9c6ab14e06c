"""The arguments of `job.batches` as a phase."""

from __future__ import annotations

from paceline.data.data_spec import DataSpec, whole_number
from paceline.errors import UsageError
from paceline.types import PhaseSpec


def phase_of(number: int, spec: DataSpec, slots: int | None, epochs: int, steps: int | None) -> PhaseSpec:
    """Phase `number`, over the data of `spec`.

    Raises:
        UsageError: a number is out of range, or `steps` and `epochs` are both given.
    """
    slots = None if slots is None else whole_number("slots", slots)
    if slots is not None and slots < 1:
        raise UsageError(f"slots must be at least 1, not {slots}")
    epochs = whole_number("epochs", epochs)
    if epochs < 0:
        raise UsageError(f"epochs must be 0 or more, not {epochs}")
    order = spec.order
    return PhaseSpec(
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
