"""What the simulator itself promises: the same run for the same seed, and a violation that can be looked into.

`test_seeds_*` play schedules of faults by the thousand: each seed is a job that must end well, with every rule checked
on the way. A failure prints the seed, the event and the events before it; `paceline dev sim --start SEED --seeds 1`
plays it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from paceline.core.server.block_store import SumKey
from paceline.sim.checks import Checker
from paceline.sim.disk import Disk
from paceline.sim.measure import measure
from paceline.sim.run import simulate
from paceline.sim.scenario import make_scenario
from paceline.sim.symbols import Gradient, Part, Reads, SymbolStore
from paceline.sim.world import Violation
from paceline.types import Fence, Placement


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in (3, 17, 29, 58):
        scenario = make_scenario(seed)
        first, second = simulate(scenario, hashed=True), simulate(scenario, hashed=True)
        assert first == second
        assert replace(first, digest="") == simulate(scenario)  # hashing is looking on
    assert len({simulate(make_scenario(seed), hashed=True).digest for seed in range(10)}) == 10


def test_the_trace_does_not_depend_on_the_process() -> None:
    """Python salts the hashes of strings anew in every process; nothing may come of the order of a set."""
    code = (
        "from paceline.sim.run import simulate; from paceline.sim.scenario import make_scenario; "
        "print([simulate(make_scenario(seed), hashed=True).digest for seed in range(20, 32)])"
    )
    seen = set()
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        seen.add(done.stdout)
    assert len(seen) == 1


def test_a_violation_names_the_seed_and_the_last_events() -> None:
    scenario = make_scenario(5)
    cramped = replace(scenario, heal_at_s=2.0, bound_s=0.0)
    with pytest.raises(Violation, match=r"seed 5, event \d+: no end") as caught:
        simulate(cramped)
    assert 1 < len(caught.value.lines) <= 40
    assert "Beat" in str(caught.value)


def test_of_those_who_are_no_primaries_only_who_has_not_heard_of_it_is_excused() -> None:
    """A worker uses its buffers again once a server is out: what is added there then is not what it should be."""
    checker = Checker(make_scenario(5))
    part = Part(0, 0, Fence(1, 1), 1.0, {0: Gradient(1, 0, Fence(1, 2), 0, 0, Reads(0, (), ()))})

    def adds(node: str, incarnation: int, epoch: int) -> None:
        checker.added(SymbolStore(checker, Disk(), node, lambda: (incarnation, epoch)), SumKey(0, None), part, ())

    checker.placement = Placement(3, ("server-1",), {})
    adds("server-0", 0, 2)
    for node, epoch in (("server-0", 3), ("server-1", 2), ("server-1", 3)):
        with pytest.raises(Violation, match="its buffer of block 0"):
            adds(node, 0, epoch)
    checker.incarnation, checker.placement = 1, None
    adds("server-1", 0, 3)
    with pytest.raises(Violation, match="its buffer of block 0"):
        adds("server-1", 1, 4)


@pytest.mark.parametrize("mode", ["bsp", "asp"])
def test_the_cost_of_a_slot_can_be_measured(mode: str) -> None:
    cost = measure(20, mode, num_slots=200)
    assert cost.slots >= 200
    assert 0 < cost.coordinator_us < cost.slot_us
    assert cost.events > cost.slots
