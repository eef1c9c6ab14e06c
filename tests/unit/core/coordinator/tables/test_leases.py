"""The lease book: which worker may compute which slot."""

from __future__ import annotations

import pytest
from tests.kit.core import fence, segment

from paceline.core.coordinator.tables.leases import LeaseBook
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.core.schedule import Schedule
from paceline.types import INIT_STEP, UNLIMITED


def book(*, hold: int = 10, max_losses: int = 3, initialised: bool = True, **changes: object) -> LeaseBook:
    leases = LeaseBook(Schedule([segment(**changes)]), 1, hold=hold, max_losses=max_losses)
    if initialised:
        leases.reset(leases.schedule, 0, initialised=True)
    return leases


def take(leases: LeaseBook, worker: str, watermark: int = 0, end: int = 5, initialised: bool = True) -> Lease:
    lease = leases.grant(worker, watermark, initialised, end)
    assert lease is not None
    return lease


def test_slots_are_leased_in_order_and_fences_grow() -> None:
    leases = book()
    got = [take(leases, f"w{i}") for i in range(4)]
    assert [g.slot for g in got] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [g.fence for g in got] == [fence(i) for i in (1, 2, 3, 4)]
    assert leases.grant("w9", 0, True, 5) is None, "step 2 must wait until step 0 is committed"
    assert take(leases, "w9", watermark=1).slot == (2, 0)


def test_the_initial_weights_come_first_and_only_step_0_goes_ahead_of_them() -> None:
    leases = book(initialised=False)
    assert take(leases, "a", initialised=False).slot == (INIT_STEP, 0)
    assert [take(leases, "b", initialised=False).slot for _ in range(2)] == [(0, 0), (0, 1)]
    assert leases.grant("b", 0, False, 5) is None
    assert take(leases, "b").slot == (1, 0)


def test_no_slot_is_leased_beyond_the_last_step() -> None:
    leases = book(window=UNLIMITED, slots=1)
    assert [take(leases, "a", end=3).slot.step for _ in range(3)] == [0, 1, 2]
    assert leases.grant("a", 0, True, 3) is None


def test_hold_bounds_the_slots_ahead_of_the_lowest_unsummed() -> None:
    leases = book(slots=6, data_len=24, end_step=2, hold=2)
    assert [take(leases, "a").slot.slot for _ in range(2)] == [0, 1]
    assert leases.grant("a", 0, True, 5) is None
    for lease in list(leases.live.held_by("a")):
        leases.seal(lease.fence, "a")
    assert leases.grant("a", 0, True, 5) is None, "sealed is not summed: the pushes may still be on their way"
    assert not leases.summed("s0", 0, 1, 2), "the other server has summed nothing yet"
    assert leases.summed("s1", 0, 2, 2)
    assert take(leases, "a").slot == (0, 2)
    assert leases.grant("a", 0, True, 5) is None
    assert not leases.summed("s1", 0, 2, 2), "a repeated report does not advance the hold"


def test_slots_given_back_are_leased_before_all_others_in_order() -> None:
    leases = book(slots=4, data_len=40)
    got = [take(leases, f"w{i}") for i in range(4)]
    for lost in ("w3", "w1", "w0"):
        leases.revoke(lost)
    assert [take(leases, "w9").slot.slot for _ in range(3)] == [0, 1, 3]
    assert take(leases, "w9").slot == (1, 0)
    assert got[0].fence not in leases.live
    assert got[2].fence in leases.live


def test_a_request_beyond_the_end_does_not_lose_slots_that_were_given_back() -> None:
    leases = book()
    leases.abandon(take(leases, "a").fence)
    assert leases.grant("a", 0, True, 0) is None
    assert take(leases, "a").slot == (0, 0)


def test_a_sealed_slot_of_a_lost_worker_is_leased_again_only_after_it_is_requeued() -> None:
    leases = book()
    lease = take(leases, "a")
    assert leases.seal(lease.fence, "b") is None, "only the holder of a lease can seal its slot"
    assert leases.seal(lease.fence, "a") == lease
    revoked = leases.revoke("a")
    assert (revoked.again, revoked.sealed, revoked.poisoned) == ([], [lease.slot], None)
    assert take(leases, "b").slot == (0, 1)
    leases.requeue(lease.slot)
    leases.requeue(lease.slot)
    assert take(leases, "b").slot == (0, 0)
    assert take(leases, "b").slot == (1, 0), "a slot that is requeued twice is leased once"


def test_a_slot_that_loses_too_many_holders_in_a_row_is_poisoned() -> None:
    leases = book(max_losses=3)
    for worker in ("a", "b"):
        take(leases, worker)
        assert leases.revoke(worker).poisoned is None
    take(leases, "c")
    poisoned = leases.revoke("c").poisoned
    assert poisoned is not None
    assert (poisoned.slot, poisoned.holders) == ((0, 0), ("a", "b", "c"))


def test_a_seal_resets_the_count_of_lost_holders() -> None:
    leases = book(max_losses=2)
    take(leases, "a")
    leases.revoke("a")
    survivor = take(leases, "b")
    leases.seal(survivor.fence, "b")
    leases.abandon(survivor.fence)
    take(leases, "c")
    assert leases.revoke("c").poisoned is None


def test_a_worker_that_leaves_does_not_count_as_a_lost_holder() -> None:
    leases = book(max_losses=1)
    take(leases, "a")
    assert leases.revoke("a", lost=False).poisoned is None
    assert take(leases, "b").slot == (0, 0)


def test_the_open_leases_of_a_worker_that_asks_again_can_be_abandoned() -> None:
    leases = book()
    first, second = take(leases, "a"), take(leases, "a")
    leases.seal(first.fence, "a")
    assert leases.abandon_open("a")
    assert first.fence in leases.live
    assert second.fence not in leases.live
    assert not leases.abandon_open("a")
    assert take(leases, "b").slot == second.slot


def test_a_lease_that_can_only_wait_is_recalled_for_a_slot_without_a_lease() -> None:
    leases = book()
    dead = take(leases, "dead")
    other = take(leases, "other")
    early = [take(leases, f"early-{i}") for i in range(2)]
    assert leases.recall(0, True) is None, "no slot is without a lease"
    leases.revoke("dead")
    assert leases.recall(0, True) == early[1], "the lease of the highest slot is recalled first"
    assert early[1].fence not in leases.live
    assert take(leases, "early-1").slot == dead.slot
    assert other.fence in leases.live
    assert take(leases, "x").slot == early[1].slot


def test_a_lease_that_can_be_computed_is_not_recalled() -> None:
    leases = book()
    take(leases, "a")
    take(leases, "b")
    leases.revoke("a")
    assert leases.recall(0, True) is None


def test_a_lease_of_step_0_is_recalled_for_the_initial_weights() -> None:
    leases = book(initialised=False)
    take(leases, "a", initialised=False)
    early = take(leases, "b", initialised=False)
    leases.revoke("a")
    assert leases.recall(0, False) == early
    assert take(leases, "b", initialised=False).slot == (INIT_STEP, 0)


def test_a_commit_ends_all_leases_of_its_step_and_returns_the_sealed_ones() -> None:
    leases = book()
    a, b = take(leases, "a"), take(leases, "b")
    later = take(leases, "c")
    leases.seal(a.fence, "a")
    leases.abandon(b.fence)
    assert leases.committed(0) == [a]
    assert a.fence not in leases.live
    assert later.fence in leases.live
    assert take(leases, "d", watermark=1).slot == (1, 1), "slots of the committed step are not leased again"


def test_leases_beyond_a_new_end_are_void() -> None:
    leases = book()
    kept = [take(leases, "a") for _ in range(2)]
    void = [take(leases, "b") for _ in range(2)]
    leases.abandon(void[0].fence)
    assert leases.first_free_step == 2
    assert leases.beyond(1) == [void[1]]
    assert [f.fence in leases.live for f in kept] == [True, True]
    assert leases.first_free_step == 1
    assert len(leases.live) == 2
    assert leases.grant("a", 0, True, 1) is None


def test_a_reserved_slot_that_was_leased_is_not_free_after_its_holder_is_gone() -> None:
    leases = book()
    take(leases, "a")
    leases.restart(0, initialised=True)
    again = take(leases, "a")
    assert again.slot == (0, 0)
    leases.reserved = type(leases.reserved)()
    leases.abandon(again.fence)
    assert leases.first_free_step == 1


@pytest.mark.parametrize("late", [fence(99), fence(1, generation=0)])
def test_unknown_fences_change_nothing(late: object) -> None:
    leases = book()
    take(leases, "a")
    assert late not in leases.live
    assert leases.live.find(late) is None  # type: ignore[arg-type]
    assert leases.abandon(late) is None  # type: ignore[arg-type]
    assert leases.seal(late, "a") is None  # type: ignore[arg-type]
