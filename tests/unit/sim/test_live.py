"""Simulated jobs change their dials while they run, and the checks of the simulator look at it."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.kit.core import segment

from paceline.core.effects import FactRow, PhaseFact, SegmentFact, Write
from paceline.sim.cluster import Cluster
from paceline.sim.live import hyper_of
from paceline.sim.log_checks import LogChecks
from paceline.sim.record import Record
from paceline.sim.run import play
from paceline.sim.scenario import make_scenario
from paceline.sim.world import Violation
from paceline.types import DialChange, PhaseSpec


def test_a_third_of_the_jobs_changes_its_dials_by_schedule_by_hand_and_by_script() -> None:
    found: Counter[str] = Counter()
    for seed in range(300):
        scenario = make_scenario(seed)
        found["scheduled"] += "@" in scenario.job.mode
        found["by hand"] += any(live.step < 0 for live in scenario.live)
        found["by script"] += any(live.step >= 0 for live in scenario.live)
        found["auto"] += scenario.job.slots_auto
        found["live"] += "@" in scenario.job.mode or bool(scenario.live)
    assert 60 < found["live"] < 140
    assert all(found[kind] > 3 for kind in ("scheduled", "by hand", "by script", "auto"))


def test_a_job_of_a_given_mode_keeps_it() -> None:
    assert all(make_scenario(seed, mode="bsp").job.mode == "bsp" for seed in range(50))


def test_the_changes_of_live_jobs_become_segments_of_their_log() -> None:
    found: Counter[str] = Counter()
    for seed in (s for s in range(60) if make_scenario(s).live):
        cluster = Cluster(make_scenario(seed), None)
        play(cluster)
        for row in cluster.disk.facts:
            if isinstance(row.fact, SegmentFact) and row.fact.segments:
                found.update(segment.mode.split(":")[0] for segment in row.fact.segments)
    assert all(found[mode] > 0 for mode in ("bsp", "ssp", "asp")), found


def test_a_change_of_steps_that_are_leased_or_committed_is_a_violation() -> None:
    record = Record()
    checks = LogChecks(record, make_scenario(0))
    first = segment(end_step=9)
    checks.wrote(Write(FactRow(0, -1, PhaseFact(PhaseSpec(0, 20, 2, 2, 1, True, False), first))))
    new = segment(step=3, end_step=9, slots=1, revision=1)
    checks.wrote(Write(FactRow(0, -1, SegmentFact(3, 1, DialChange(slots=1), "a test", (new,)))))
    assert record.schedule.segment(3) == new
    record.watermark.add(0)
    with pytest.raises(Violation, match="dials change from step 0 on"):
        checks.wrote(Write(FactRow(0, -1, SegmentFact(0, 2, DialChange(slots=1), "a test", ()))))


def test_the_rate_of_a_step_follows_from_its_segment() -> None:
    assert hyper_of(0, segment(lr_scale=0.5)) == ({"lr": 0.25},)
    assert hyper_of(0, segment(lr=0.3)) == ({"lr": 0.3},)
