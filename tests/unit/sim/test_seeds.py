"""The first 200 of the seeds that follow from the code, and the seeds that ever failed."""

from __future__ import annotations

import pytest
from tests.kit.schedules import first_seed, play_seeds

from paceline.sim.run import simulate
from paceline.sim.scenario import make_scenario

FAILED_BEFORE = (
    3425, 13417, 103098, 202323, 202940, 203182, 1020942, 1028399, 1064866, 2002579, 3050325, 4057151, 8003688, 8027113,
    8082144, 9102021, 9228308, 11007836, 11127605, 72002799,
    4050510328,
)  # fmt: skip
"""Seeds that found a fault (docs/faults-found.md). A change of the protocol changes their schedules."""


def test_200_seeds_end_well_and_break_no_rule(pytestconfig: pytest.Config) -> None:
    play_seeds(first_seed(pytestconfig))


@pytest.mark.parametrize("seed", FAILED_BEFORE)
def test_a_seed_that_failed_before_breaks_no_rule(seed: int) -> None:
    simulate(make_scenario(seed, hosts=1))
