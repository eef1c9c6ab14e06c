"""Each slot reseeds torch, numpy and random from (seed, step, slot), so its result does not depend on the worker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from paceline.core.sampling import slot_seed


def seed_slot(seed: int, step: int, slot: int) -> None:
    """Seed torch, numpy and random for one slot: its random numbers follow from (`seed`, `step`, `slot`) alone."""
    seed_all(slot_seed(seed, step, slot))


def seed_all(seed: int) -> None:
    """Seed torch, numpy and random, and the generators of accelerators.

    The result is that of `torch.manual_seed`, but an accelerator that is not in use is not seeded: torch would format
    and keep a stack trace for it at each call, which takes longer than a turn of a small model.
    """
    seed_sample(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        torch.xpu.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


def seed_sample(seed: int) -> None:
    """Seed torch on the CPU, numpy and random: enough for a sample, which is made on the CPU."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def preserved() -> Iterator[None]:
    """Restore torch on the CPU, numpy and random at the end of the block to their states at its start."""
    state, state_numpy, state_random = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        np.random.set_state(state_numpy)
        random.setstate(state_random)
