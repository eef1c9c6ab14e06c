"""The simulator itself: one seed gives one run, and a violation names its seed and the last events.

`test_seeds_*` play thousands of schedules with faults; each job must end well, and every rule is checked on the way.
`paceline dev sim --start SEED --seeds 1` plays one schedule again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from paceline.core.effects import IncarnationFact
from paceline.core.server.block_store import SumKey
from paceline.sim.disk import Disk
from paceline.sim.log_checks import LogChecks
from paceline.sim.measure import measure
from paceline.sim.record import Record
from paceline.sim.run import simulate
from paceline.sim.scenario import make_scenario
from paceline.sim.server_checks import ServerChecks
from paceline.sim.symbols import Gradient, Reads, SymbolStore, Term
from paceline.sim.worker_checks import WorkerChecks
from paceline.sim.world import Violation
from paceline.types import Fence, Placement


def test_the_same_seed_gives_the_same_trace() -> None:
    for seed in (3, 17, 29, 58):
        scenario = make_scenario(seed)
        first, second = simulate(scenario, hashed=True), simulate(scenario, hashed=True)
        assert first == second
        assert replace(first, digest="") == simulate(scenario)  # the hash of the trace does not change the trace
    assert len({simulate(make_scenario(seed), hashed=True).digest for seed in range(10)}) == 10


def test_the_trace_does_not_depend_on_the_process() -> None:
    """Python salts the hashes of strings in every process: no decision may depend on the order of a set."""
    code = (
        "from paceline.sim.run import simulate; from paceline.sim.scenario import make_scenario; "
        "print([simulate(make_scenario(seed), hashed=True).digest for seed in range(20, 32)])"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": salt}, stdout=subprocess.PIPE, text=True
        )
        for salt in ("1", "2")
    ]
    seen = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert len(seen) == 1


def test_a_violation_names_the_seed_and_the_last_events() -> None:
    scenario = make_scenario(5)
    cramped = replace(scenario, heal_at_s=2.0, bound_s=0.0)
    with pytest.raises(Violation, match=r"seed 5, event \d+: no end") as caught:
        simulate(cramped)
    assert 1 < len(caught.value.lines) <= 40
    assert "Beat" in str(caught.value)


def test_only_a_server_in_an_older_placement_may_read_a_reused_buffer() -> None:
    """A worker reuses its buffers once a server left the placement, so that server may add another gradient."""
    record = Record()
    log = LogChecks(record, make_scenario(5))
    checks = ServerChecks(record, log, WorkerChecks(record), hold=1)
    term = Term(0, 0, Fence(1, 1), 1.0, {0: Gradient(1, 0, Fence(1, 2), 0, 0, Reads(0, (), ()))})

    def adds(node: str, incarnation: int, epoch: int) -> None:
        checks.added(SymbolStore(checks, Disk(), node, lambda: (incarnation, epoch)), SumKey(0, None), term, ())

    record.place(Placement(3, ("server-1",), {}))
    adds("server-0", 0, 2)
    for node, epoch in (("server-0", 3), ("server-1", 2), ("server-1", 3)):
        with pytest.raises(Violation, match="its buffer of block 0"):
            adds(node, 0, epoch)
    record.rewind(IncarnationFact(1, "", None, ""))
    adds("server-1", 0, 3)
    with pytest.raises(Violation, match="its buffer of block 0"):
        adds("server-1", 1, 4)


@pytest.mark.parametrize("mode", ["bsp", "asp"])
def test_the_cost_of_a_slot_can_be_measured(mode: str) -> None:
    cost = measure(20, mode, num_slots=200)
    assert cost.slots >= 200
    assert 0 < cost.coordinator_us < cost.slot_us
    assert cost.events > cost.slots


def test_the_cost_of_a_slot_can_be_measured_on_hosts() -> None:
    cost = measure(20, num_slots=200, hosts=4)
    assert (cost.hosts, cost.as_dict()["hosts"]) == (4, 4)
    assert "20 workers on 4 hosts" in str(cost)
