"""800 seeds more, and 250 in which servers are lost one at a time; which seeds follows from the code."""

from __future__ import annotations

from itertools import count, islice

import pytest
from tests.kit.schedules import PER_TEST, first_seed, play, play_seeds

from paceline.sim.scenario import make_scenario

pytestmark = pytest.mark.many_seeds


@pytest.mark.parametrize("part", range(1, 5))
def test_200_more_seeds_end_well_and_break_no_rule(part: int, pytestconfig: pytest.Config) -> None:
    play_seeds(first_seed(pytestconfig) + part * PER_TEST)


@pytest.mark.parametrize("part", range(2))
def test_servers_lost_one_at_a_time_never_cause_a_rewind(part: int, pytestconfig: pytest.Config) -> None:
    start = first_seed(pytestconfig) + 1_000 * (1 + part)
    careful = (scenario for scenario in map(make_scenario, count(start)) if scenario.careful)
    tally = play(islice(careful, 125))
    assert tally.totals["rewinds"] == 0
    assert tally.totals["failovers"] > 25
