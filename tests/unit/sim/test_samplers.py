"""Samplers in the simulator: the same slots on the same batches whatever fails, and no work done twice without need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.sim.samplers import Shape, play

SHAPES = {
    "workers wait": Shape(prepare_s=0.03),
    "samplers wait": Shape(prepare_s=0.002),
    "many samplers": Shape(workers=3, samplers=7, slots=5),
    "one of each": Shape(workers=1, samplers=1),
    "no samplers": Shape(samplers=0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_without_faults_every_slot_is_prepared_once(name: str) -> None:
    record = play(SHAPES[name])
    assert record.twice == []
    assert sum(record.by_workers.values()) == (400 if name == "no samplers" else 0)


@pytest.mark.parametrize("seed", range(20))
def test_kills_stops_and_losses_change_no_batch_and_hang_nothing(seed: int) -> None:
    shape = [*SHAPES.values()][seed % 4]
    record = play(replace(shape, steps=60, kills=4, stops=seed % 3, loss=(0.0, 0.05)[seed % 2]), seed)
    assert record.seconds < 60.0


def test_a_kill_costs_only_the_slots_that_were_ahead() -> None:
    record = play(Shape(steps=200, kills=5, prepare_s=0.002), 7)
    assert len(record.twice) <= 5 * 12, record.twice


def test_samplers_that_keep_up_let_nobody_wait() -> None:
    record = play(Shape(prepare_s=0.002))
    assert record.waited < 0.25 * record.seconds * 2, "about the way there and back for each slot"


@pytest.mark.parametrize("prepare_s", [0.002, 0.02])
def test_ten_times_the_data_and_the_samplers_cost_no_more_for_a_slot(prepare_s: float) -> None:
    small = play(Shape(workers=4, samplers=2, steps=50, prepare_s=prepare_s))
    large = play(Shape(workers=4, samplers=20, steps=500, prepare_s=prepare_s))
    assert large.twice == [] == small.twice
    assert large.events / len(large.computed) <= 1.1 * small.events / len(small.computed)
