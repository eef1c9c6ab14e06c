"""Random numbers as a function of the slot, in torch, numpy and random alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed every generator that a training step may draw from, accelerators included.

    What `torch.manual_seed` does, but for accelerators only once they are in use: before that it formats a stack trace
    at each call and keeps it, which costs more than a small model's whole turn.
    """
    seed_sample(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        torch.xpu.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def seed_sample(seed: int) -> None:
    """Seed what a data set may draw from; cheaper, since data are made on the CPU."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the generators as they were."""
    state, state_numpy, state_random = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(state_numpy)
        random.setstate(state_random)
