"""Gradients that are not finite are found within a few turns, at a small cost for each."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from paceline.types import Kind, TensorSpec
from paceline.worker.gradient_check import GradientCheck


def _specs(*shapes: tuple[int, ...]) -> list[TensorSpec]:
    return [TensorSpec(f"p{n}", shape, "float32", Kind.PARAMETER, 0) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_small_model_is_checked_in_every_turn(bad: float) -> None:
    specs = _specs((3, 4), (), (0, 3))
    check = GradientCheck(specs)
    gradients = {n: torch.ones(spec.shape) for n, spec in enumerate(specs)}
    assert check.find(gradients, 7) is None
    gradients[1].fill_(bad)
    assert check.find(gradients, 7) == "p1"
    del gradients[1]
    assert check.find(gradients, 7) is None, "a parameter without a gradient"


def test_every_element_of_a_large_model_is_checked_in_some_turn() -> None:
    specs = [*_specs((100, 300), (7,), (17_001,), (1, 9), *[(2,)] * 9), TensorSpec("b", (5,), "float32", Kind.MEAN)]
    check = GradientCheck(specs)
    gradients = {n: torch.zeros(spec.shape) for n, spec in enumerate(specs) if spec.kind == Kind.PARAMETER}
    assert [check.find(gradients, turn) for turn in range(9)] == [None] * 9
    for number, gradient in gradients.items():
        for place in (0, gradient.numel() // 2, gradient.numel() - 1):
            gradient.view(-1)[place] = nan
            found = [turn for turn in range(9) if check.find(gradients, turn) == f"p{number}"]
            assert found, f"element {place} of tensor {number} was never looked at"
            gradient.view(-1)[place] = 0.0


def test_a_turn_looks_at_a_bounded_part(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = _specs((4096, 1024), *[(64,)] * 40)
    check = GradientCheck(specs)
    for share in check._shares:
        assert len(share) <= 4
        assert sum((rows.number or 1) * (1024 if rows.tensor == 0 else 64) for rows in share) <= 16_384


def test_finite_numbers_with_an_infinite_sum_are_finite() -> None:
    check = GradientCheck(_specs((4,)))
    assert check.find({0: torch.full((4,), 3e38)}, 0) is None


def test_other_layouts_and_types_are_checked() -> None:
    check = GradientCheck(_specs((32, 32, 5, 5), (8,)))
    gradients = {0: torch.zeros(32, 32, 5, 5).contiguous(memory_format=torch.channels_last), 1: torch.zeros(8).half()}
    gradients[1][3] = 60000.0
    gradients[1][4] = 60000.0
    assert [check.find(gradients, turn) for turn in range(4)] == [None] * 4
    gradients[0][31, 31, 4, 4] = nan
    assert "p0" in [check.find(gradients, turn) for turn in range(4)]
