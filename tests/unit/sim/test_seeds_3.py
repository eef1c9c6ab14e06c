"""A thousand seeds, and more with two copies of each block."""

from __future__ import annotations

import pytest
from tests.kit.schedules import PER_TEST, play_copies, play_seeds


@pytest.mark.parametrize("start", range(2000, 3000, PER_TEST))
def test_seeds(start: int) -> None:
    play_seeds(start)


@pytest.mark.parametrize(("mode", "start"), [("bsp", 61_000), ("ssp:2", 61_085), ("asp", 61_170)])
def test_seeds_with_two_copies(mode: str, start: int) -> None:
    play_copies(range(start, start + 85), mode, 2)
