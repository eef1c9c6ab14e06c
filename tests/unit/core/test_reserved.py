"""Blocks change hands in the middle of a step: who has computed a slot of it gets it again, if it comes for it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.core.kit import fence, segment, sent
from tests.unit.core.test_placing import compute, desk, epoch, kill, placed, ready, tick

from paceline.core.effects import Effect
from paceline.core.leases import LeaseBook
from paceline.core.schedule import Schedule
from paceline.messages import Grant, Unreachable
from paceline.types import SlotId


def struck(*, slots: int = 2, hold: int = 10, workers: str = "ab", window: int = 0) -> LeaseBook:
    """Each worker had a slot of step 0, when everything became void."""
    leases = LeaseBook(Schedule([segment(slots=slots, data_len=24, window=window)]), 1, hold=hold, max_losses=3)
    leases.start_at(0)
    for worker in workers:
        assert leases.grant(worker, 0, True, 5) is not None
    leases.restart(0, initialised=True, now=1.0)
    return leases


def take(leases: LeaseBook, worker: str, end: int = 5) -> SlotId | None:
    lease = leases.grant(worker, 0, True, end)
    return None if lease is None else lease.slot


# ---------------------------------------------------------------- leases


def test_who_had_a_slot_gets_it_again_whoever_asks_first() -> None:
    leases = struck()
    assert [take(leases, w) for w in "ba"] == [(0, 1), (0, 0)]
    assert not leases.reserved
    assert take(leases, "a") == (1, 0), "nothing is left of step 0"


def test_others_leave_it_to_them_and_go_on_with_what_comes_next() -> None:
    leases = struck(slots=3)
    assert take(leases, "c") == (0, 2)
    assert take(leases, "c") == (1, 0)
    assert [take(leases, w) for w in "ab"] == [(0, 0), (0, 1)]


def test_a_worker_that_had_two_gets_the_newer_one() -> None:
    leases = struck(slots=3, workers="aba")
    assert take(leases, "a") == (0, 2)
    assert take(leases, "a") == (0, 0), "the older one is anybody's"
    assert take(leases, "a") == (1, 0)


def test_it_is_still_theirs_when_the_blocks_change_hands_once_more() -> None:
    leases = struck()
    assert take(leases, "b") == (0, 1)
    leases.restart(0, initialised=True, now=2.0)
    assert take(leases, "c") == (1, 0)
    assert [take(leases, w) for w in "ba"] == [(0, 1), (0, 0)]
    leases.restart(1, initialised=True, now=3.0)
    lease = leases.grant("b", 1, True, 5)
    assert lease is not None
    assert lease.slot == (1, 1), "step 0 is committed, and c had a slot of step 1"


def test_what_is_not_fetched_is_anybodys_at_last() -> None:
    leases = struck()
    assert take(leases, "c") == (1, 0)
    leases.release("a")
    assert take(leases, "c") == (0, 0)
    assert take(leases, "a") == (1, 1), "it has none any more"
    assert take(leases, "b") == (0, 1)


def test_who_is_gone_fetches_nothing() -> None:
    leases = struck()
    assert take(leases, "c") == (1, 0)
    leases.revoke("b")
    assert take(leases, "c") == (0, 1)


def test_a_slot_is_not_lost_with_one_that_may_not_have_it_now() -> None:
    leases = struck()
    assert take(leases, "a", end=0) is None, "it is in another loop"
    assert [take(leases, w) for w in "cb"] == [(0, 0), (0, 1)]
    late = struck(slots=3, hold=1, workers="a")
    late.reserved.begin(0, [(fence(1), "a", SlotId(0, 2))], 0.0)
    assert take(late, "a") == (0, 0), "the servers have no room for a later one"
    assert late.summed("s0", 0, 1, 1)
    assert take(late, "a") == (0, 1)
    assert late.summed("s0", 0, 2, 1)
    assert take(late, "a") == (0, 2)


def test_steps_that_will_not_be_computed_are_left_to_nobody() -> None:
    leases = struck()
    leases.beyond(0)
    assert not leases.reserved
    assert take(leases, "a", end=0) is None


def test_with_a_window_whoever_is_first_gets_it() -> None:
    """The state has changed since: what was computed is not what would be computed."""
    leases = struck(slots=1, window=3)
    assert not leases.reserved
    assert [take(leases, w) for w in "ba"] == [(0, 0), (1, 0)]


# ---------------------------------------------------------------- the coordinator


def slots(effects: Sequence[Effect]) -> dict[str, tuple[int, int]]:
    """What each worker is given by `effects`."""
    workers = [f"worker-{i}" for i in range(3)]
    return {worker: (g.step, g.slot) for worker in workers for g in sent(effects, Grant, worker)}


def test_after_a_failover_workers_get_what_they_had() -> None:
    job = desk()
    compute(job, 0)
    kill(job, "server-0")
    assert slots(job.turn("worker-1")) == {"worker-1": (0, 1)}
    assert slots(job.turn("worker-0")) == {"worker-0": (0, 0)}


def test_who_waits_and_gets_nothing_is_not_in_the_way_of_one_who_does() -> None:
    job = desk(slots=1, data_len=2)
    grant = job.lease("worker-1")
    assert slots(job.turn("worker-0")) == slots(job.seal("worker-1", grant)) == {}, "there is only one slot"
    assert slots(kill(job, "server-0")) == {"worker-1": (0, 0)}


def test_one_that_still_computes_is_waited_for_as_long_as_usual() -> None:
    job = desk(workers=3, slots=3, data_len=60)
    ready(job, 0, compute(job, 0))  # each takes 0.1 s
    for worker in job.workers:
        job.core.leases.abandon_open(worker)
    grants = [job.lease(worker) for worker in job.workers]
    job.seal("worker-0", grants[0])
    tick(job, 0.0)
    kill(job, "server-0")
    (again,) = sent(job.turn("worker-0"), Grant, "worker-0")
    assert (again.step, again.slot) == (1, 0)
    assert slots(job.seal("worker-0", again)) == {"worker-0": (2, 0)}, "the others are about to come"
    (again,) = sent(job.seal("worker-1", grants[1]), Grant, "worker-1")
    assert (again.step, again.slot) == (1, 1)
    job.seal("worker-1", again)
    tick(job, 0.2)
    assert job.core.leases.reserved
    tick(job, 1.0)
    assert slots(job.turn("worker-0")) == {"worker-0": (1, 2)}, "worker-2 is late: another one computes it"


def test_one_that_cannot_reach_a_server_is_not_waited_for() -> None:
    job = desk()
    compute(job, 0)
    kill(job, "server-0")
    job.say("worker-1", Unreachable(placed(job).owners[0], 1.0, epoch(job)))
    assert job.core.cut_off == {"worker-1"}
    tick(job, 0.01)
    found = []
    for _ in range(2):
        (grant,) = sent(job.turn("worker-0"), Grant, "worker-0")
        found.append((grant.step, grant.slot))
        job.core.leases.seal(grant.fence, "worker-0")
    assert found == [(0, 0), (0, 1)]


def test_a_slow_one_is_given_what_it_has() -> None:
    """Though others would compute it sooner than it would."""
    job = desk(data_len=60)
    fast, slow = job.workers
    for step in range(2):
        grants = compute(job, step)
        ready(job, step, grants)
        for worker in job.workers:
            job.core.leases.abandon_open(worker)
    compute(job, 2)
    job.core.pace.note(slow, 60.0, job.now)
    tick(job, 0.0)
    assert job.core.pace.is_slow(slow, job.now)
    kill(job, "server-0")
    assert slots(job.turn(slow)) == {slow: (2, 1)}
    assert slots(job.turn(fast)) == {fast: (2, 0)}
