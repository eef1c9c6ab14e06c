"""A slot that loses several holders in a row fails the job, and the error names its samples."""

from __future__ import annotations

from tests.kit.core import segment

from paceline.core.coordinator.tables.lost_holders import LostHolders
from paceline.core.schedule import Schedule
from paceline.types import INIT_STEP, SlotId


def test_the_error_names_the_holders_in_order_and_the_samples_of_the_slot() -> None:
    schedule = Schedule([segment(slots=2, data_len=10, batch_size=2)])
    lost = LostHolders(2)
    assert lost.add(SlotId(1, 1), "a", schedule) is None
    assert lost.add(SlotId(1, 0), "b", schedule) is None, "losses are counted for each slot"
    error = lost.add(SlotId(1, 1), "c", schedule)
    assert error is not None
    assert (error.step, error.slot, error.holders) == (1, 1, ("a", "c"))
    assert error.samples == "positions 6..7 of epoch 0"


def test_losses_that_are_forgotten_do_not_count() -> None:
    schedule, lost, slot = Schedule([segment()]), LostHolders(2), SlotId(0, 0)
    lost.add(slot, "a", schedule)
    lost.forget(slot)
    assert lost.add(slot, "b", schedule) is None
    lost.clear()
    assert lost.add(slot, "c", schedule) is None


def test_the_slot_of_the_initial_weights_has_no_samples() -> None:
    error = LostHolders(1).add(SlotId(INIT_STEP, 0), "a", Schedule([]))
    assert error is not None
    assert error.samples == "the initial weights"
