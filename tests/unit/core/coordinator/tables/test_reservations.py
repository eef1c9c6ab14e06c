"""Reservations: after a change of placement a worker gets the slot again that it has computed, if it asks in time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.kit.core import fence, segment, sent
from tests.kit.placed_job import compute, epoch, kill, placed, ready, replicated_job, tick

from paceline.coordinator.status import _slowest
from paceline.core.coordinator.tables.leases import LeaseBook
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.core.effects import Effect
from paceline.core.schedule import Schedule
from paceline.messages import Exited, Grant, Revoke, Unreachable
from paceline.types import SlotId


def struck(*, slots: int = 2, hold: int = 10, workers: str = "ab", window: int = 0) -> LeaseBook:
    """Return leases after a change of placement: each worker held a slot of step 0, and all leases became void."""
    leases = LeaseBook(Schedule([segment(slots=slots, data_len=24, window=window)]), 1, hold=hold, max_losses=3)
    leases.reset(leases.schedule, 0, initialised=True)
    for worker in workers:
        assert leases.grant(worker, 0, True, 5) is not None
    leases.restart(0, initialised=True, now=1.0)
    return leases


def take(leases: LeaseBook, worker: str, end: int = 5) -> SlotId | None:
    lease = leases.grant(worker, 0, True, end)
    return None if lease is None else lease.slot


# ---------------------------------------------------------------- leases


def test_a_worker_gets_its_reserved_slot_in_any_order_of_asking() -> None:
    leases = struck()
    assert [take(leases, w) for w in "ba"] == [(0, 1), (0, 0)]
    assert not leases.reserved
    assert take(leases, "a") == (1, 0), "step 0 has no more slots"


def test_other_workers_get_the_slots_after_reserved_ones() -> None:
    leases = struck(slots=3)
    assert take(leases, "c") == (0, 2)
    assert take(leases, "c") == (1, 0)
    assert [take(leases, w) for w in "ab"] == [(0, 0), (0, 1)]


def test_a_worker_that_had_two_slots_gets_the_newer_one() -> None:
    leases = struck(slots=3, workers="aba")
    assert take(leases, "a") == (0, 2)
    assert take(leases, "a") == (0, 0), "any worker may get the older slot"
    assert take(leases, "a") == (1, 0)


def test_a_reservation_survives_a_second_change_of_placement() -> None:
    leases = struck()
    assert take(leases, "b") == (0, 1)
    leases.restart(0, initialised=True, now=2.0)
    assert take(leases, "c") == (1, 0)
    assert [take(leases, w) for w in "ba"] == [(0, 1), (0, 0)]
    leases.restart(1, initialised=True, now=3.0)
    lease = leases.grant("b", 1, True, 5)
    assert lease is not None
    assert lease.slot == (1, 1), "step 0 is committed, and worker c held a slot of step 1"


def test_a_released_reservation_is_free_for_every_worker() -> None:
    leases = struck()
    assert take(leases, "c") == (1, 0)
    leases.release("a")
    assert take(leases, "c") == (0, 0)
    assert take(leases, "a") == (1, 1), "worker a has no reservation any more"
    assert take(leases, "b") == (0, 1)


def test_the_reservation_of_a_lost_worker_ends() -> None:
    leases = struck()
    assert take(leases, "c") == (1, 0)
    leases.revoke("b")
    assert take(leases, "c") == (0, 1)


def test_a_reserved_slot_that_may_not_be_leased_yet_is_requeued() -> None:
    leases = struck()
    assert take(leases, "a", end=0) is None, "the worker is in another loop"
    assert [take(leases, w) for w in "cb"] == [(0, 0), (0, 1)]
    late = struck(slots=3, hold=1, workers="a")
    late.reserved.begin(0, [(fence(1), "a", SlotId(0, 2))], 0.0)
    assert take(late, "a") == (0, 0), "the slot is beyond the hold of the servers"
    assert late.summed("s0", 0, 1, 1)
    assert take(late, "a") == (0, 1)
    assert late.summed("s0", 0, 2, 1)
    assert take(late, "a") == (0, 2)


def test_steps_that_will_not_be_computed_have_no_reservations() -> None:
    leases = struck()
    leases.beyond(0)
    assert not leases.reserved
    assert take(leases, "a", end=0) is None


def test_with_a_window_nothing_is_reserved() -> None:
    """The state has changed: the computed gradient is not the one that would be computed now."""
    leases = struck(slots=1, window=3)
    assert not leases.reserved
    assert [take(leases, w) for w in "ba"] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("fetched", [False, True])
def test_any_number_of_workers_may_have_a_reservation(fetched: bool) -> None:
    workers = [f"worker-{i}" for i in range(1500)]
    leases = LeaseBook(Schedule([segment(slots=1500, data_len=30_000, batch_size=1)]), 1, hold=2000, max_losses=3)
    leases.reset(leases.schedule, 0, initialised=True)
    for worker in workers:
        take(leases, worker)
    leases.restart(0, initialised=True)
    if fetched:
        assert [take(leases, worker) for worker in workers] == [(0, i) for i in range(1500)]
    assert take(leases, "new") == (1, 0)


def test_a_committed_step_has_no_reservations() -> None:
    leases = struck(slots=1, workers="a")
    (late,) = [leases.grant("a", 0, True, 5)]
    assert late is not None
    leases.lease(late.slot, "b", 0.0)  # two workers hold the slot
    leases.restart(0, initialised=True)
    assert len(leases.reserved) == 2
    assert take(leases, "a") == (0, 0)
    assert SlotId(0, 0) in leases.reserved
    leases.committed(0)
    assert not leases.reserved
    assert SlotId(0, 0) not in leases.reserved


class History:
    """A random history: workers act in any order; the servers sum and commit the sealed slots."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.slots = self.chance.randint(1, 6)
        self.hold = self.chance.choice([1, 2, 3, self.slots + 2, 20])
        plan = Schedule([segment(slots=self.slots, data_len=self.slots * 160, end_step=40)])
        self.low = 0
        self.leases = LeaseBook(plan, 1, hold=self.hold, max_losses=10**9, done=lambda slot: slot.step < self.low)
        self.leases.reset(plan, 0, initialised=True)
        self.workers = [f"worker-{i}" for i in range(self.chance.randint(1, 5))]

    def ask(self, worker: str, end: int = 38) -> Lease | None:
        self.leases.abandon_open(worker)  # a worker that asks computes nothing
        lease = self.leases.grant(worker, self.low, True, end)
        if lease is not None:
            assert lease.slot.step >= self.low
            assert lease.slot.slot < self.leases._low(lease.slot.step) + self.hold
        return lease

    def lose(self, worker: str) -> None:
        for slot in self.leases.revoke(worker).sealed:
            self.leases.requeue(slot)

    def sum(self) -> bool:
        """Sum the sealed slots of the lowest step; return whether that commits the step."""
        sealed = {ls.slot for ls in self.leases.live.all() if not self.leases.live.is_open(ls.fence)}
        count = next(i for i in range(self.slots + 1) if SlotId(self.low, i) not in sealed)
        self.leases.summed("server", self.low, count, 1)
        if count < self.slots:
            return False
        self.leases.committed(self.low)
        self.low += 1
        return True

    def event(self) -> None:
        leases, worker = self.leases, self.chance.choice(self.workers)
        open_ = leases.live.open_leases()
        held = self.chance.choice(open_) if open_ else None
        match self.chance.choices(range(8), (45, 20, 6, 6, 6, 6, 3, 5))[0]:
            case 0:
                self.ask(worker, 38 if self.chance.random() < 0.93 else 0)
            case 1 if held is not None:
                leases.seal(held.fence, held.worker)
            case 2 if held is not None:
                leases.abandon(held.fence)
            case 3:
                leases.release(worker)
            case 4:
                self.lose(worker)
            case 5:
                leases.restart(self.low, initialised=True)
            case 6 if held is not None and leases.live.attempts(held.slot) == 1:
                leases.lease(held.slot, worker, 0.0)
            case 7:
                self.sum()
                leases.recall(self.low, True)

    def end(self) -> None:
        """Lose all workers; a new one must be able to compute two more steps."""
        for worker in self.workers:
            self.lose(worker)
        for _ in range(2):
            for _ in range(10 * self.slots + 20):
                lease = self.ask("new")
                if lease is not None:
                    self.leases.seal(lease.fence, "new")
                if self.sum():
                    break
            else:
                raise AssertionError(f"a slot of step {self.low} is lost")


def test_no_slot_is_ever_lost() -> None:
    for seed in range(1500):
        history = History(seed)
        for _ in range(history.chance.randint(1, 80)):
            if history.low < 30:
                history.event()
        history.end()


# ---------------------------------------------------------------- the coordinator


def slots(effects: Sequence[Effect]) -> dict[str, tuple[int, int]]:
    """Return the slot that `effects` lease to each worker."""
    workers = [f"worker-{i}" for i in range(3)]
    return {worker: (g.step, g.slot) for worker in workers for g in sent(effects, Grant, worker)}


def test_after_a_failover_workers_get_their_slots_again() -> None:
    job = replicated_job()
    compute(job, 0)
    kill(job, "server-0")
    assert slots(job.turn("worker-1")) == {"worker-1": (0, 1)}
    assert slots(job.turn("worker-0")) == {"worker-0": (0, 0)}


def test_a_waiting_worker_without_a_slot_does_not_delay_one_with_a_reservation() -> None:
    job = replicated_job(slots=1, data_len=2)
    grant = job.lease("worker-1")
    assert slots(job.turn("worker-0")) == slots(job.seal("worker-1", grant)) == {}, "the step has only one slot"
    assert slots(kill(job, "server-0")) == {"worker-1": (0, 0)}


def test_a_reservation_ends_when_its_worker_takes_much_longer_than_a_slot() -> None:
    job = replicated_job(workers=3, slots=3, data_len=60)
    ready(job, 0, compute(job, 0))  # each slot takes 0.1 s
    for worker in job.workers:
        job.core.tables.leases.abandon_open(worker)
    grants = [job.lease(worker) for worker in job.workers]
    job.seal("worker-0", grants[0])
    tick(job, 0.0)
    kill(job, "server-0")
    (again,) = sent(job.turn("worker-0"), Grant, "worker-0")
    assert (again.step, again.slot) == (1, 0)
    assert slots(job.seal("worker-0", again)) == {"worker-0": (2, 0)}, "the reservations of the others still hold"
    (again,) = sent(job.seal("worker-1", grants[1]), Grant, "worker-1")
    assert (again.step, again.slot) == (1, 1)
    job.seal("worker-1", again)
    tick(job, 0.2)
    assert job.core.tables.leases.reserved
    slowest = _slowest(job.core)
    assert slowest is not None
    assert (slowest.worker, slowest.slot) == ("worker-2", 2), "the status names the worker that the step waits for"
    tick(job, 1.0)
    assert slots(job.turn("worker-0")) == {"worker-0": (1, 2)}, "worker-2 is late, so worker-0 computes its slot"


def test_a_worker_that_is_cut_off_loses_its_reservation() -> None:
    job = replicated_job()
    compute(job, 0)
    kill(job, "server-0")
    job.say("worker-1", Unreachable(placed(job).owners[0], 1.0, epoch(job)))
    assert job.core.tables.reach.cut_off == {"worker-1"}
    tick(job, 0.01)
    found = []
    for _ in range(2):
        (grant,) = sent(job.turn("worker-0"), Grant, "worker-0")
        found.append((grant.step, grant.slot))
        job.core.tables.leases.seal(grant.fence, "worker-0")
    assert found == [(0, 0), (0, 1)]


def test_other_workers_get_the_slot_of_a_waiting_worker_that_is_cut_off() -> None:
    job = replicated_job(servers=2, data_len=60)
    compute(job, 0)
    job.say("worker-1", Unreachable("server-1", 1.0, epoch(job)))
    kill(job, "server-0")
    assert job.core.tables.reach.cut_off == {"worker-1"}
    (grant,) = sent(job.turn("worker-0"), Grant, "worker-0")
    assert (grant.step, grant.slot) == (0, 0)
    assert slots(job.turn("worker-1")) == {}
    assert slots(job.seal("worker-0", grant)) == {"worker-0": (0, 1)}


def test_a_lease_is_recalled_even_if_a_worker_that_is_cut_off_waits() -> None:
    """The waiting worker gets no slots, so it cannot compute the one without a lease."""
    job = replicated_job(servers=2, workers=3, data_len=60)
    first, second = job.lease("worker-0"), job.lease("worker-1")
    job.say("worker-2", Unreachable(placed(job).owners[0], 1.0, epoch(job)))
    assert slots(job.turn("worker-2")) == {}
    (ahead,) = sent(job.seal("worker-0", first), Grant, "worker-0")
    assert ahead.step == 1
    assert second.slot == 1
    effects = job.say("engine", Exited(job.req(), "worker-1", 1, -9))
    assert [r.fence for r in sent(effects, Revoke, "worker-0")] == [ahead.fence]


def test_a_reserved_slot_comes_before_late_slots_of_others() -> None:
    job = replicated_job(workers=3, slots=3, data_len=60)
    ready(job, 0, compute(job, 0))
    for worker in job.workers:
        job.core.tables.leases.abandon_open(worker)
    grants = [job.lease(worker) for worker in job.workers]
    job.core.tables.speeds.note("worker-2", 60.0, job.now)
    tick(job, 0.0)
    kill(job, "server-0")
    for worker in ("worker-0", "worker-1"):
        (grant,) = sent(job.turn(worker), Grant, worker)
        if worker == "worker-0":
            job.seal(worker, grant)
    tick(job, 1.0)  # worker-1 is late; worker-2 is slow in every step
    assert slots(job.seal("worker-2", grants[2])) == {"worker-2": (1, 2)}


def test_a_reservation_ends_even_if_no_speed_is_known() -> None:
    job = replicated_job(slots=1, data_len=60)
    job.lease("worker-0")
    kill(job, "server-0")
    assert slots(job.turn("worker-1")) == {"worker-1": (1, 0)}
    tick(job, 30.0)  # copies are made, so all leases become void again
    assert slots(job.turn("worker-1")) == {"worker-1": (1, 0)}
    assert job.core.tables.leases.reserved
    assert sent(tick(job, 31.0), Revoke, "worker-1"), "worker-1 must compute the slot that worker-0 does not ask for"
    assert slots(job.turn("worker-1")) == {"worker-1": (0, 0)}


def test_a_slow_worker_gets_its_reserved_slot() -> None:
    """Even if another worker would finish the slot sooner."""
    job = replicated_job(data_len=60)
    fast, slow = job.workers
    for step in range(2):
        grants = compute(job, step)
        ready(job, step, grants)
        for worker in job.workers:
            job.core.tables.leases.abandon_open(worker)
    compute(job, 2)
    job.core.tables.speeds.note(slow, 60.0, job.now)
    tick(job, 0.0)
    assert job.core.tables.speeds.is_slow(slow, job.now)
    kill(job, "server-0")
    assert slots(job.turn(fast)) == {fast: (2, 0)}
    assert slots(job.turn(slow)) == {slow: (2, 1)}
