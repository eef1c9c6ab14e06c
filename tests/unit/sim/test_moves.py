"""Jobs whose blocks move between servers and a group of workers while they run: seeds, and those that ever failed."""

from __future__ import annotations

import pytest
from tests.kit.schedules import play

from paceline.sim.run import simulate
from paceline.sim.scenario import BOTH, make_scenario

FAILED_BEFORE = (1132, 1436, 3584, 10847)
"""Seeds that found a fault (docs/faults-found.md). A change of the protocol changes their schedules."""


def test_40_seeds_of_moves_end_well_and_break_no_rule() -> None:
    tally = play(make_scenario(seed, mode=BOTH) for seed in range(40))
    assert set(tally.fired) >= {"kill", "kill-server", "kill-coordinator", "power-cut", "set", "scale", "vanish"}
    assert tally.totals["moves"] > 25
    assert tally.totals["commits"] > 400
    assert tally.totals["rewinds"] > 5
    assert tally.totals["failovers"] > 10


@pytest.mark.parametrize("seed", FAILED_BEFORE)
def test_a_seed_of_moves_that_failed_before_breaks_no_rule(seed: int) -> None:
    simulate(make_scenario(seed, mode=BOTH))


def test_a_schedule_of_moves_can_be_repeated() -> None:
    scenario = make_scenario(7, mode=BOTH)
    assert simulate(scenario, hashed=True).digest == simulate(scenario, hashed=True).digest
