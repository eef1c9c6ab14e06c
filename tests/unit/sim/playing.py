"""Plays many seeds. In two test files, so that two processes can share them."""

from __future__ import annotations

from paceline.sim.run import Tally, simulate
from paceline.sim.scenario import FAULTS, make_scenario

PER_TEST = 100


def play(start: int) -> None:
    """`PER_TEST` seeds, all of which must end well, with faults of every kind among them."""
    tally = Tally()
    for seed in range(start, start + PER_TEST):
        tally.add(simulate(make_scenario(seed)))
    assert tally.totals["slots"] > PER_TEST
    assert set(tally.fired) >= set(FAULTS), "a campaign that injects nothing proves nothing"
    assert tally.totals["lost_workers"] > 10
