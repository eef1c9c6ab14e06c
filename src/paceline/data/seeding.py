"""Seeds the generators of torch, numpy and random: random numbers are a function of the slot."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed every generator that a training step may draw from, accelerators included.

    Does what `torch.manual_seed` does, but seeds accelerators only once they are in use: before that torch formats and
    keeps a stack trace at each call, which costs more than a small model's whole turn.
    """
    seed_sample(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        torch.xpu.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def seed_sample(seed: int) -> None:
    """Seed the generators that a data set may draw from: cheaper, since data are made on the CPU."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the generators at the end of the block."""
    state, state_numpy, state_random = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(state_numpy)
        random.setstate(state_random)
