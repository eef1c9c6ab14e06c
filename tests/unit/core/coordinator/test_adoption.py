"""A restarted coordinator adopts leases that an earlier one granted."""

from __future__ import annotations

from tests.kit.restarted_job import held, server_back, trained, worker_back

from paceline.messages import (
    HeldLease,
    Register,
)
from paceline.types import Fence


def test_a_repeated_registration_does_not_restore_a_lease_that_was_given_back() -> None:
    job = trained(1)
    grant = job.lease("worker-0")
    job.restart()
    for server in job.servers:
        server_back(job, server)
    intro = Register(job.req(), "worker", "worker-0", 1, "here", None, job.job, leases=(held(grant),), progress=0)
    job.say("worker-0", intro)
    assert grant.fence in job.core.tables.leases.live
    job.now += 100.0
    again = job.lease("worker-0")
    job.say("worker-0", intro)
    assert grant.fence not in job.core.tables.leases.live
    assert (again.step, again.slot) == (grant.step, grant.slot)


def test_a_lease_of_a_slot_that_another_worker_has_is_not_adopted() -> None:
    job = trained(1)
    grant = job.lease("worker-0")
    job.restart()
    for server in job.servers:
        server_back(job, server)
    job.now += 1.0
    worker_back(job, "worker-1")
    again = job.lease("worker-1")
    assert (again.step, again.slot) == (grant.step, grant.slot)
    worker_back(job, "worker-0", held(grant))
    assert list(job.core.tables.leases.live.held_by("worker-0")) == []
    assert grant.fence not in job.core.tables.leases.live
    worker_back(job, "worker-0", HeldLease(1, 1, Fence(2, 99)))
    assert Fence(2, 99) not in job.core.tables.leases.live, "only leases of earlier coordinators are adopted"
