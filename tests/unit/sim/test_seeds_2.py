"""A thousand seeds, and more with one copy of each block."""

from __future__ import annotations

import pytest
from tests.kit.schedules import PER_TEST, play_copies, play_seeds


@pytest.mark.parametrize("start", range(1000, 2000, PER_TEST))
def test_seeds(start: int) -> None:
    play_seeds(start)


@pytest.mark.parametrize(("mode", "start"), [("bsp", 60_000), ("ssp:2", 60_085), ("asp", 60_170)])
def test_seeds_with_one_copy(mode: str, start: int) -> None:
    play_copies(range(start, start + 85), mode, 1)
