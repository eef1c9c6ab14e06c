"""Leasing: slots go to workers that ask."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, fence, sent
from tests.kit.restarted_job import busy

from paceline.messages import (
    Bye,
    Grant,
    Revoke,
    Turn,
)
from paceline.types import INIT_STEP


def test_the_slot_of_a_lost_worker_goes_to_a_worker_that_waits() -> None:
    job = CoordinatorKit(workers=5).start().initialise()
    grants = [job.lease(w) for w in job.workers[:4]]
    assert [(g.step, g.slot) for g in grants] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert job.turn("worker-4") == []
    (again,) = sent(job.core.lost("worker-0", "killed", job.now), Grant, "worker-4")
    assert (again.step, again.slot) == (0, 0)
    assert job.core.totals.lost_workers == 1


def test_in_lock_step_a_sealed_slot_of_a_lost_worker_is_leased_again_after_a_grace_period() -> None:
    job = CoordinatorKit(workers=3).start().initialise()
    grants = [job.lease(w) for w in job.workers[:2]]
    for worker, grant in zip(job.workers, grants, strict=False):
        job.seal(worker, grant)
    job.core.lost("worker-0", "killed", job.now)
    assert [g.step for g in sent(job.turn("worker-2"), Grant)] == [1]
    effects = job.core.tick(job.now + 0.31)
    assert len(sent(effects, Revoke)) == 1, "no worker is free, so a lease that can only wait is revoked"


def test_a_worker_that_has_left_gets_no_lease() -> None:
    job = CoordinatorKit().start().initialise()
    job.say("worker-0", Bye(job.req()))
    assert job.turn("worker-0") == []
    assert len(job.core.tables.leases.live) == 0
    job.core.lost("worker-0", "its process ended", job.now)
    assert job.core.totals.lost_workers == 0


def test_the_initial_weights_are_leased_again_when_their_worker_dies() -> None:
    job = CoordinatorKit().start()
    first = job.lease("worker-0")
    early = Turn(job.req(), 0, 0)
    assert sent(job.say("worker-1", early), Grant)[0].step == 0
    effects = job.core.lost("worker-0", "killed", job.now)
    assert len(sent(effects, Revoke, "worker-1")) == 1
    again = job.lease("worker-1")
    assert (first.step, again.step) == (INIT_STEP, INIT_STEP)
    assert again.fence > fence(1)


def test_a_measurement_that_is_too_old_counts_among_many_that_are_held_back() -> None:
    job = CoordinatorKit(workers=50, mode="asp", slots=1).start(data_len=2 * 40).initialise()
    fast, slow = job.workers[:10], job.workers[10:]
    busy(job, slow[20], 1.0)
    job.now += 4.9
    for worker in job.workers:
        if worker != slow[20]:
            busy(job, worker, 0.1 if worker in fast else 1.0)
    grants = [job.lease(worker) for worker in fast]
    for worker in slow:
        assert sent(job.turn(worker), Grant) == []
    for number, worker in enumerate(fast[:2]):
        job.now += 0.15
        job.seal(worker, grants[number])
        given = sent(job.ready(job.servers[0], grants[number].step, grants[number].fence), Grant)
        assert [grant.step for grant in given] == ([] if number else [11]), "only the worker whose measurement is old"
