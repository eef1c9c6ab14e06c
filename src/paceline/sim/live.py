"""Live changes of a simulated job: schedules of modes, and dials that a user or the script sets while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from paceline.config.dials import ALLREDUCE
from paceline.types import DialChange, Hyper, Segment

_MODES = ("bsp", "bsp", "ssp:0", "ssp:1", "ssp:3", "asp")

MIXED = (*_MODES, ALLREDUCE, ALLREDUCE, ALLREDUCE)
"""Modes of both reducers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSet:
    """Dials that are set: by the script of each worker that computes a slot of `step`, or by hand after `at_s`."""

    change: DialChange
    step: int = -1
    at_s: float = 0.0


def make_schedule(rng: Random, first: str, last: int, modes: Sequence[str] = _MODES) -> str:
    """A schedule of `modes` that begins with `first`, for a job of about `last` steps."""
    steps = sorted({rng.randint(1, last) for _ in range(rng.randint(1, 3))})
    chosen = [first, *(rng.choice(modes) for _ in steps)]
    return ",".join([f"{mode}@{step}" for mode, step in zip(chosen, steps, strict=False)] + chosen[-1:])


def make_set(rng: Random, last: int, length_s: float, modes: Sequence[str] = _MODES) -> LiveSet:
    """Dials to set, in a job of about `last` steps whose faults end after `length_s`."""
    change = DialChange()
    while change == DialChange():
        change = DialChange(
            mode=rng.choice(modes) if rng.random() < 0.6 else "",
            slots=rng.randint(1, 6) if rng.random() < 0.4 else 0,
            lr_scale=rng.choice((0.5, 2.0)) if rng.random() < 0.3 else 0.0,
            checkpoint_steps=rng.randint(0, 4) if rng.random() < 0.2 else -1,
        )
        if change.checkpoint_steps >= 0:
            change = msgspec.structs.replace(change, checkpoint_s=0.0)
    if rng.random() < 0.5:
        return LiveSet(change=change, step=rng.randint(0, last))
    return LiveSet(change=change, at_s=rng.random() * length_s)


def hyper_of(step: int, segment: Segment | None) -> Hyper:
    """The hyper-parameters that every script has in a step, with those that its segment changes."""
    rate = 1.0 / (step + 2)
    if segment is not None:
        rate = segment.lr or rate * segment.lr_scale
    return ({"lr": rate},)
