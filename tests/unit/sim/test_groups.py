"""Jobs whose workers hold the blocks: 120 seeds, and the seeds that ever failed.

The seeds do not follow from the code yet: about one of 1,000 still finds a fault.
"""

from __future__ import annotations

import pytest
from tests.kit.schedules import play

from paceline.sim.fault_kinds import GROUP_FAULTS
from paceline.sim.run import simulate
from paceline.sim.scenario import make_scenario

FAILED_BEFORE = (42, 63, 176, 384, 419, 436, 652, 300245)
"""Seeds that found a fault (docs/faults-found.md). A change of the protocol changes their schedules."""


def test_120_seeds_of_groups_end_well_and_break_no_rule() -> None:
    tally = play(make_scenario(seed, mode="allreduce") for seed in range(120))
    assert set(tally.fired) >= {*GROUP_FAULTS, "break", "power-cut", "kill-coordinator"}, "a kind of fault never fired"
    assert tally.totals["commits"] > 500
    assert tally.totals["lost_workers"] > 50
    assert tally.totals["failovers"] > 40
    assert tally.totals["copies"] > 100
    assert tally.totals["rewinds"] > 20


@pytest.mark.parametrize("seed", FAILED_BEFORE)
def test_a_seed_of_groups_that_failed_before_breaks_no_rule(seed: int) -> None:
    simulate(make_scenario(seed, mode="allreduce"))


def test_a_schedule_of_a_group_can_be_repeated() -> None:
    scenario = make_scenario(7, mode="allreduce")
    assert simulate(scenario, hashed=True).digest == simulate(scenario, hashed=True).digest
