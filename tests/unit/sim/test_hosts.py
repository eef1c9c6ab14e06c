"""Simulated jobs on several hosts: what their faults are, and that the checks see what goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kit.schedules import play

from paceline.core.effects import FactRow, PlacementFact, Send, Write
from paceline.messages import Grant
from paceline.sim.fault_kinds import HOST_FAULTS, Fault
from paceline.sim.log_checks import LogChecks
from paceline.sim.record import Record
from paceline.sim.run import simulate
from paceline.sim.scenario import Scenario, make_scenario
from paceline.sim.world import Violation
from paceline.types import INIT_STEP, Commit, Fence, Placement


def test_a_scenario_on_one_host_has_no_faults_of_hosts() -> None:
    for seed in range(50):
        scenario = make_scenario(seed, hosts=1)
        assert scenario.hosts == 1
        assert not {f.kind for f in scenario.faults} & set(HOST_FAULTS)
    assert {make_scenario(seed).hosts for seed in range(100)} == {1, 2, 3, 4}, "some seeds have several hosts"


def losses(seeds: range) -> list[Scenario]:
    """Careful scenarios in calm weather in which a host is lost, and nothing else happens."""
    found: list[Scenario] = []
    for seed in seeds:
        scenario = make_scenario(seed, hosts=3, replicas=1, servers=3, mode="bsp")
        if len(found) < 6 and scenario.careful and scenario.heal_at_s > 4.0:
            at = [0.3 + 0.5 * n for n in range(6)]
            faults = tuple(Fault(at_s=a, kind="lose-host") for a in at)
            found.append(replace(scenario, faults=faults, weather=type(scenario.weather)(), unequal=False))
    return found


def test_hosts_that_are_lost_one_at_a_time_cost_no_rewind() -> None:
    tally = play(losses(range(200)))
    assert tally.fired["host-killed"] > 3
    assert tally.totals["rewinds"] == 0
    assert tally.totals["failovers"] > 3


def test_attempts_of_unequal_workers_for_one_slot_are_a_violation() -> None:
    scenario = replace(make_scenario(1, hosts=2, mode="bsp"), unequal=True)
    checks = LogChecks(Record(), scenario)
    for counter, worker in ((1, "worker-0/1"), (2, "worker-1/2")):
        checks.sends(Send(worker, Grant(1, 2, 0, 1, INIT_STEP, 0, 1, Fence(2, counter), None, False)))
    commit = Commit(0, 0, INIT_STEP, (Fence(2, 1),), (), 1.0, False, 0, 0)
    checks._check_kinds(commit)
    mixed = Commit(0, 0, INIT_STEP, (Fence(2, 1),), (), 1.0, False, 0, 0, 0.0, 0, (((0,), (Fence(2, 2),)),))
    with pytest.raises(Violation, match="counts as attempts of workers on"):
        checks._check_kinds(mixed)


def test_unequal_workers_without_whole_attempts_are_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some schedule mixes attempts of unequal workers if the coordinator does not look at fingerprints."""
    monkeypatch.setattr("paceline.core.coordinator.placement.workers_differ", lambda members: False)
    broken = 0
    for seed in range(400):
        scenario = make_scenario(seed, hosts=2, mode="bsp", workers=4, servers=3)
        if scenario.model.deterministic and not broken:
            try:
                simulate(replace(scenario, unequal=True))
            except Violation as violation:
                broken += "counts as attempts of workers on" in violation.what
    assert broken


def test_the_log_checks_follow_the_count_of_the_epoch() -> None:
    scenario = make_scenario(1, hosts=2, mode="bsp")
    checks = LogChecks(Record(), scenario)
    placement = Placement(1, ("server-0",), {})
    checks.wrote(Write(FactRow(0, -1, PlacementFact(placement, whole_attempts=True))))
    assert checks.needs_one_attempt(0)
