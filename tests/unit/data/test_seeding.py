"""The random numbers of a slot follow from (seed, step, slot)."""

from __future__ import annotations

import random

import numpy as np
import torch

from paceline.data.seeding import preserved, seed_slot


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def draws_of(seed: int, step: int, slot: int) -> tuple[float, float, float]:
    seed_slot(seed, step, slot)
    return draws()


def test_each_slot_reseeds_torch_numpy_and_random() -> None:
    with preserved():
        first = draws_of(7, 3, 1)
        others = [draws_of(8, 3, 1), draws_of(7, 4, 1), draws_of(7, 3, 2)]
        assert draws_of(7, 3, 1) == first
    for mine, *theirs in zip(first, *others, strict=True):
        assert len({mine, *theirs}) == 4, "a generator does not depend on seed, step and slot"


def test_preserved_restores_the_generators() -> None:
    with preserved():
        before = draws_of(7, 0, 0)
        seed_slot(7, 0, 0)
        with preserved():
            seed_slot(7, 5, 0)
        assert draws() == before
