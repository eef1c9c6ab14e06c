"""The number of slots that `--slots auto` chooses by the speeds of the workers."""

from __future__ import annotations

import pytest

from paceline.core.policies.slots_auto import choose_slots


def test_equal_workers_get_one_slot_each() -> None:
    assert choose_slots({"a": 0.1, "b": 0.1}, 2) is None
    choice = choose_slots({"a": 0.1, "b": 0.1}, 1)
    assert choice is not None
    assert choice.slots == 2


def test_a_worker_that_is_four_times_as_fast_gets_four_slots_of_five() -> None:
    choice = choose_slots({"fast": 0.1, "slow": 0.4}, 2)
    assert choice is not None
    assert choice.slots == 5
    assert "fast 0.1 s, slow 0.4 s" in choice.reason
    assert "100% of the time, with 2" in choice.reason


def test_a_small_gain_changes_nothing() -> None:
    assert choose_slots({"fast": 0.1, "slow": 0.4}, 5) is None
    assert choose_slots({"a": 0.100, "b": 0.103}, 2) is None


def test_slots_are_bounded_by_the_number_of_workers() -> None:
    choice = choose_slots({"a": 0.001, "b": 1.0}, 2)
    assert choice is None or choice.slots <= 16


@pytest.mark.parametrize("seconds", [{}, {"a": 0.0, "b": 0.1}])
def test_without_measurements_nothing_is_chosen(seconds: dict[str, float]) -> None:
    assert choose_slots(seconds, 2) is None


def test_a_thousand_workers_are_decided_quickly() -> None:
    seconds = {f"worker-{i}": 0.1 + (i % 3) * 0.1 for i in range(1000)}
    choice = choose_slots(seconds, 1000)
    assert choice is not None
    assert 1000 < choice.slots <= 8000
