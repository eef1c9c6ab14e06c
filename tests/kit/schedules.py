"""Plays many seeds. 5,000 schedules in all, in four test files of equal length, so that processes can share them."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.sim.run import Tally, simulate
from paceline.sim.scenario import FAULTS, SERVER_FAULTS, Scenario, make_scenario

PER_TEST = 250


def play(scenarios: Iterable[Scenario]) -> Tally:
    """All of them must end well."""
    tally = Tally()
    for scenario in scenarios:
        tally.add(simulate(scenario))
    return tally


def play_seeds(start: int) -> None:
    """`PER_TEST` seeds, with faults of every kind among them, and what must be survived because of them."""
    tally = play(make_scenario(seed) for seed in range(start, start + PER_TEST))
    assert set(tally.fired) >= {*FAULTS, *SERVER_FAULTS}, "a campaign that injects nothing proves nothing"
    assert tally.totals["slots"] > 5 * PER_TEST
    assert tally.totals["lost_workers"] > 25
    assert tally.totals["failovers"] > 25
    assert tally.totals["copies"] > 50
    assert tally.totals["rewinds"] > 10


def play_copies(seeds: range, mode: str, replicas: int) -> None:
    """Seeds of one mode, with that many backups of each block."""
    tally = play(make_scenario(seed, mode=mode, replicas=replicas) for seed in seeds)
    assert set(tally.fired) >= set(SERVER_FAULTS), "a campaign that injects nothing proves nothing"
    assert tally.totals["failovers"] > 10
    assert tally.totals["copies"] > 20
