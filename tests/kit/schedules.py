"""Plays seeded schedules of faults in the simulator.

A test run plays 2,000 seeds. Which ones follows from the code of Paceline: every change of it plays other schedules,
and the same code plays the same ones in every run, before it is merged and after. `--first-seed N` plays those of
another run. The files share them in about equal parts, so that processes can too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pytest

import paceline
from paceline.sim.fault_kinds import FAULTS, HOST_FAULTS, SERVER_FAULTS
from paceline.sim.run import Tally, simulate
from paceline.sim.scenario import Scenario, make_scenario

PER_TEST = 200
SPREAD = 5_000
"""The distance between the first seeds of two versions of the code: more than one run plays."""
SOURCES = Path(paceline.__file__).parent


@cache
def seed_of_code() -> int:
    """The first seed of the code of Paceline as it is on the disk."""
    found = blake2b(digest_size=3)
    for path in sorted(SOURCES.rglob("*.py")):
        found.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return int.from_bytes(found.digest(), "big") * SPREAD


def first_seed(config: pytest.Config) -> int:
    """The first seed of this test run."""
    given: int | None = config.getoption("--first-seed")
    return seed_of_code() if given is None else given


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
