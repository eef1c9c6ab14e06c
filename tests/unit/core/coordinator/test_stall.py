"""A job that makes no progress says who waits for whom."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit

from paceline.core.coordinator.stall import STALL_S, Stall, stall_of


def stalled(job: CoordinatorKit, seconds: float = STALL_S) -> Stall | None:
    job.core.tables.clock.set(job.now + seconds)
    return stall_of(job.core.tables, seconds)


def test_a_step_waits_for_a_worker_that_has_leased_a_slot() -> None:
    job = CoordinatorKit(hosts={"worker-1": "b"}).start().initialise()
    job.lease("worker-0")
    late = job.lease("worker-1")
    first = job.lease("worker-0")
    job.seal("worker-0", first)
    assert stalled(job, STALL_S - 0.1) is None
    assert stalled(job) == Stall(f"step 0 waits for slot {late.slot} on worker-1, host b, for 5.0 s", "worker-1")


def test_a_worker_that_is_always_slow_is_not_late_yet() -> None:
    job = CoordinatorKit().start().initialise()
    grant = job.lease("worker-0")
    job.core.tables.speeds.note("worker-0", 4.0, job.now)
    assert grant.step == 0
    assert stalled(job, 11.9) is None
    assert stalled(job, 12.0) is not None


def test_a_step_waits_for_the_server_that_is_not_ready() -> None:
    job = CoordinatorKit(servers=2, slots=1, hosts={"server-1": "c"}).start().initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    job.ready("server-0", 0, grant.fence)
    job.core.tables.leases.abandon_open("worker-0")
    found = stalled(job)
    assert found is not None
    assert found.text == "step 0 waits for server-1, host c: not ready with the sum of its slots, for 5.0 s"


def test_a_job_that_nobody_works_for_and_one_between_two_loops() -> None:
    job = CoordinatorKit(workers=1, slots=1).start().initialise()
    job.core.lost("worker-0", "killed", job.now)
    assert stalled(job) == Stall("step 0 waits for a worker: none takes part, for 5.0 s")
    job = CoordinatorKit(workers=1, slots=1).start().initialise()
    for step in range(6):
        job.finish_step(step)
    assert job.core.tables.phases.open is None
    assert stalled(job, 100.0) is None
