"""Plays seeded schedules of faults in the simulator.

A test run plays 2,000 seeds. Which ones rotates with the commit, so that successive commits cover different schedules;
`--first-seed N` plays the same seeds again. The files share them in about equal parts, so that processes can too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from paceline.sim.fault_kinds import FAULTS, HOST_FAULTS, SERVER_FAULTS
from paceline.sim.run import Tally, simulate
from paceline.sim.scenario import Scenario, make_scenario

PER_TEST = 200
FALLBACK = 0
"""The first seed where there is no git."""
SPREAD = 5_000
"""The distance between the first seeds of two commits: more than one run plays."""


@cache
def seed_of_commit() -> int:
    """The first seed of the checked-out commit."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return FALLBACK
    return int(done.stdout[:5], 16) * SPREAD


def first_seed(config: pytest.Config) -> int:
    """The first seed of this test run."""
    given: int | None = config.getoption("--first-seed")
    return seed_of_commit() if given is None else given


def play(scenarios: Iterable[Scenario]) -> Tally:
    """Play schedules; a violated rule raises, and names its seed."""
    tally = Tally()
    for scenario in scenarios:
        tally.add(simulate(scenario))
    return tally


def play_seeds(start: int) -> None:
    """Play `PER_TEST` seeds; faults of every kind fire, and the job survives enough of each kind of loss."""
    tally = play(make_scenario(seed) for seed in range(start, start + PER_TEST))
    assert set(tally.fired) >= {*FAULTS, *SERVER_FAULTS, *HOST_FAULTS}, "some kind of fault was never injected"
    assert tally.totals["slots"] > 5 * PER_TEST
    assert tally.totals["lost_workers"] > PER_TEST // 10
    assert tally.totals["failovers"] > PER_TEST // 10
    assert tally.totals["copies"] > PER_TEST // 5
    assert tally.totals["rewinds"] > PER_TEST // 25


def play_replicas(start: int, mode: str, replicas: int) -> None:
    """Play 85 seeds of one mode with `replicas` backups of each block."""
    tally = play(make_scenario(seed, mode=mode, replicas=replicas) for seed in range(start, start + 85))
    assert set(tally.fired) >= set(SERVER_FAULTS), "some kind of fault was never injected"
    assert tally.totals["failovers"] > 10
    assert tally.totals["copies"] > 20
