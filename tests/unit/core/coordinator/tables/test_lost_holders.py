"""A slot that loses several holders in a row fails the job, and the error names its samples."""

from __future__ import annotations

from tests.kit.core import segment
from tests.kit.reference_training import sample_at

from paceline.core.coordinator.tables.lost_holders import LostHolders, Poisoned
from paceline.core.schedule import Schedule
from paceline.types import INIT_STEP, SlotId


def test_a_slot_that_loses_too_many_holders_in_a_row_is_returned_with_them() -> None:
    lost = LostHolders(2)
    assert lost.add(SlotId(1, 1), "a") is None
    assert lost.add(SlotId(1, 0), "b") is None, "losses are counted for each slot"
    assert lost.add(SlotId(1, 1), "c") == (SlotId(1, 1), ("a", "c"))


def test_workers_that_are_lost_with_their_host_count_once_for_each_host() -> None:
    lost, slot = LostHolders(3), SlotId(1, 1)
    for worker, host in (("a", "one"), ("b", "one"), ("c", "two"), ("d", "two"), ("e", "one")):
        assert lost.add(slot, worker, host) is None
    assert lost.add(slot, "f") == (slot, ("a", "c", "f"))


def test_the_error_names_the_workers_and_the_samples_by_their_index_in_the_data_set() -> None:
    schedule = Schedule([segment(slots=2, data_len=10, batch_size=2)])
    error = Poisoned(SlotId(1, 1), ("worker-0/1-2-x", "worker-3/1-9-y")).error(schedule, seed=7)
    assert (error.step, error.slot, error.holders) == (1, 1, ("worker-0", "worker-3"))
    assert error.samples == tuple(sample_at(position, 10, 7, 0) for position in (6, 7))
    assert error.samples != (6, 7)
    first, second = error.samples
    assert f"its samples are {first}, {second} (indices into the data set" in str(error)


def test_the_error_of_a_large_slot_names_only_some_samples() -> None:
    schedule = Schedule([segment(slots=1, data_len=100, batch_size=70, shuffle=False)])
    error = Poisoned(SlotId(0, 0), ("a",)).error(schedule, seed=7)
    assert error.samples == tuple(range(70))
    assert ", 62, 63 and 6 more (indices" in str(error)


def test_losses_that_are_forgotten_do_not_count() -> None:
    lost, slot = LostHolders(2), SlotId(0, 0)
    lost.add(slot, "a")
    lost.forget(slot)
    assert lost.add(slot, "b") is None
    lost.clear()
    assert lost.add(slot, "c") is None


def test_the_slot_of_the_initial_weights_has_no_samples() -> None:
    error = Poisoned(SlotId(INIT_STEP, 0), ("a",)).error(Schedule([]), seed=7)
    assert error.samples == ()
    assert "the initial weights ended 1 workers in a row (a)" in str(error)
