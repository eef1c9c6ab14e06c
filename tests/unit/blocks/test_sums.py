"""Gradients that are added early, late or for nothing: the sum has the bits of a plain sum."""

from __future__ import annotations

import random

import pytest
import torch

from paceline.blocks.sums import BlockSum, SumMemory, Term, mean
from paceline.types import Fence

N = 70


def draw(dice: random.Random) -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(dice.randrange(1 << 30))) * 3


class Counted(SumMemory):
    """Counts the memory in use, and overwrites what is given back."""

    __slots__ = ("most", "out")

    def __init__(self) -> None:
        super().__init__(N, torch.float32)
        self.out = 0
        self.most = 0

    def take(self) -> torch.Tensor:
        self.out += 1
        self.most = max(self.most, self.out)
        return super().take().fill_(float("nan"))

    def give_back(self, memory: torch.Tensor | None) -> None:
        if memory is not None:
            self.out -= 1
            super().give_back(memory.fill_(float("nan")))


@pytest.mark.parametrize("seed", range(300))
def test_unsealed_terms_never_change_the_sum(seed: int) -> None:
    dice = random.Random(seed)
    slots = dice.randrange(1, 7)
    memory = Counted()
    block_sum = BlockSum(memory)
    fences = [Fence(1, n) for n in range(slots)]
    revs = [0] * slots
    weights = [dice.choice([1.0, 1.0, 0.5, 0.3]) for _ in range(slots)]
    content = {(n, 0): draw(dice) for n in range(slots)}
    expected: torch.Tensor | None = None
    late = dice.choice([0, 1])
    for slot in range(slots):
        for _ in range(dice.randrange(6)):
            other = dice.randrange(slots)
            if dice.random() < 0.3:
                revs[other] += 1
                content[other, revs[other]] = draw(dice)
            fence = fences[other] if dice.random() < 0.8 else Fence(1, 99)  # an attempt that will not count
            value = content[other, revs[other]] if fence == fences[other] else draw(dice)
            weight = weights[other] if dice.random() < 0.9 else 0.7
            block_sum.expect(Term(other, fence, revs[other], weight, value), slot)
        if dice.random() < 0.15:
            block_sum.skip(slot)
            continue
        value = content[slot, revs[slot]]
        block_sum.seal(Term(slot, fences[slot], revs[slot], weights[slot], value))
        if len(block_sum.terms) > late:
            block_sum.fold(len(block_sum.terms) - late)
        assert sum(t.sealed for t in block_sum.terms) <= slots
        part = value if weights[slot] == 1.0 else value * weights[slot]
        expected = part if expected is None else expected + part
    assert block_sum.empty == (expected is None)
    if expected is not None:
        block_sum.skip(slots)  # terms that wait beyond the last slot
        assert torch.equal(block_sum.into(torch.empty(N)), expected)
    assert memory.most <= 2
    block_sum.close()
    assert memory.out == 0


def test_an_early_term_is_not_added_again() -> None:
    memory = Counted()
    block_sum = BlockSum(memory)
    values = [torch.ones(N), torch.ones(N) * 2]
    for slot in (1, 0):
        block_sum.expect(Term(slot, Fence(1, slot), 0, 1.0, values[slot]), 0)
    assert memory.out == 1, "both are added"
    for slot in (0, 1):
        block_sum.seal(Term(slot, Fence(1, slot), 0, 1.0, values[slot]))
    assert block_sum.terms == [], "the gradients are released"
    assert block_sum.base is not None
    assert block_sum.base.tolist() == [3.0] * N


def test_the_last_gradient_is_not_copied() -> None:
    memory = Counted()
    block_sum = BlockSum(memory)
    for slot in range(2):
        block_sum.seal(Term(slot, None, -1, 1.0, torch.ones(N)))
        block_sum.fold(len(block_sum.terms) - slot)
    assert memory.out == 0
    assert len(block_sum.terms) == 2
    assert block_sum.into(torch.empty(N)).tolist() == [2.0] * N


@pytest.mark.parametrize("weight", [1.0, 2.0, 3.0, 4.0, 1.375, 1024.0])
def test_the_mean_has_the_bits_of_a_division(weight: float) -> None:
    values = torch.cat(
        [torch.randn(1000), torch.tensor([1e-45, 3e-45, -1e-40, 1.2e-38, 3e38, float("inf"), 0.0, -0.0])]
    )
    assert torch.equal(mean(values, weight, torch.empty_like(values)), values / weight)


def test_terms_after_a_changed_one_need_not_come_again() -> None:
    memory = Counted()
    block_sum = BlockSum(memory)
    for slot in range(3):
        block_sum.expect(Term(slot, Fence(1, slot), 0, 1.0, torch.full((N,), slot + 1.0)), 0)
    block_sum.expect(Term(0, Fence(1, 0), 1, 1.0, torch.full((N,), 10.0)), 0)
    for slot, rev in enumerate((1, 0, 0)):
        block_sum.seal(Term(slot, Fence(1, slot), rev, 1.0, torch.full((N,), float("nan"))))
    assert block_sum.terms == [], "all terms were added before they were sealed"
    assert block_sum.into(torch.empty(N)).tolist() == [15.0] * N
