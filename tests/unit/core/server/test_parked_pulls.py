"""Parked pulls are found by the condition that they wait for."""

from __future__ import annotations

from paceline.core.server.parked_pulls import ParkedPulls
from paceline.messages import Pull


def test_parked_pulls_are_taken_out_by_their_condition() -> None:
    parked = ParkedPulls()
    parked.park("a", Pull(1, 0, 1, 3), version=3)
    parked.park("b", Pull(1, 0, 1, -1), watermark=2)
    parked.park("c", Pull(1, 0, 1, -1), step=7)
    parked.park("d", Pull(1, 0, 1, -1))
    assert len(parked) == 4
    assert [s for s, _ in parked.take_unconditional()] == ["d"]
    assert parked.take_committed(2, 6, 1) == []
    assert [s for s, _ in parked.take_committed(3, 7, 2)] == ["a", "c", "b"]
    assert len(parked) == 0


def test_pulls_whose_conditions_are_cleared_are_taken_out_as_unconditional() -> None:
    parked = ParkedPulls()
    parked.park("a", Pull(1, 0, 1, 3), version=3)
    parked.park("b", Pull(1, 0, 1, -1), watermark=2)
    parked.clear_conditions()
    assert parked.take_committed(3, 7, 2) == []
    assert [s for s, _ in parked.take_unconditional()] == ["a", "b"]


def test_drop_removes_all_parked_pulls_of_a_peer() -> None:
    parked = ParkedPulls()
    parked.park("a", Pull(1, 0, 1, 3), version=3)
    parked.drop("a")
    assert parked.take_committed(3, 2, 3) == []
