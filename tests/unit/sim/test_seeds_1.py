"""The first thousand seeds, and more of each mode."""

from __future__ import annotations

import pytest
from tests.kit.schedules import PER_TEST, play, play_seeds

from paceline.sim.scenario import make_scenario


@pytest.mark.parametrize("start", range(0, 1000, PER_TEST))
def test_seeds(start: int) -> None:
    play_seeds(start)


@pytest.mark.parametrize(("mode", "start"), [("bsp", 50_000), ("ssp:0", 50_060), ("ssp:2", 50_120), ("asp", 50_180)])
def test_seeds_of_a_mode(mode: str, start: int) -> None:
    tally = play(make_scenario(seed, mode=mode) for seed in range(start, start + 60))
    assert tally.totals["commits"] > 120
