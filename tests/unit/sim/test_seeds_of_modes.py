"""750 seeds of each mode and number of backups; which seeds follows from the code."""

from __future__ import annotations

import pytest
from tests.kit.schedules import first_seed, play, play_replicas

from paceline.sim.scenario import make_scenario

pytestmark = pytest.mark.many_seeds


@pytest.mark.parametrize(("part", "mode"), list(enumerate(["bsp", "ssp:0", "ssp:2", "asp"])))
def test_60_seeds_of_each_mode_break_no_rule(part: int, mode: str, pytestconfig: pytest.Config) -> None:
    start = first_seed(pytestconfig) + 60 * part
    tally = play(make_scenario(seed, mode=mode) for seed in range(start, start + 60))
    assert tally.totals["commits"] > 120


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("part", "mode"), list(enumerate(["bsp", "ssp:2", "asp"])))
def test_85_seeds_with_backups_break_no_rule(part: int, mode: str, replicas: int, pytestconfig: pytest.Config) -> None:
    play_replicas(first_seed(pytestconfig) + 85 * (3 * replicas + part), mode, replicas)
