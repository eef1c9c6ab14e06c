"""A thousand seeds, and more in which servers are lost one at a time."""

from __future__ import annotations

from itertools import count, islice

import pytest
from tests.kit.schedules import PER_TEST, play, play_seeds

from paceline.sim.scenario import make_scenario


@pytest.mark.parametrize("start", range(3000, 4000, PER_TEST))
def test_seeds(start: int) -> None:
    play_seeds(start)


@pytest.mark.parametrize("start", range(70_000, 72_000, 1_000))
def test_servers_lost_one_at_a_time_never_take_the_job_back(start: int) -> None:
    careful = (s for s in map(make_scenario, count(start)) if s.careful)
    tally = play(islice(careful, 125))
    assert tally.totals["rewinds"] == 0
    assert tally.totals["failovers"] > 25
