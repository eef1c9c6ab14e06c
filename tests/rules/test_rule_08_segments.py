"""Rule 8, segments decide: nothing adaptive acts by timing in lock-step.

What changes in a running job changes by a segment, from a named step on. The metrics that a script sees after a loop
are those of the version at which its phase ended, whatever is evaluated later. In a loop they follow from the step:
the result on version v is seen from step v + every on, and leases of that step wait for it.

Upheld by:
- `core.schedule.Schedule.segment`: the last segment from a step on decides
- `core.coordinator.segments.Segments.fix_metrics`: metrics as of the end of a phase
- `core.coordinator.metric_names.seen_at`: metrics in a loop, by the step
- `core.coordinator.offers.Offers.offer`: leases that wait for a validation
"""

from __future__ import annotations

import pytest
from tests.kit.core import CoordinatorKit, segment, sent
from tests.kit.restarted_job import save, server_back, worker_back

from paceline.core.schedule import Schedule
from paceline.messages import (
    Declare,
    EvalGrant,
    Grant,
    PhaseOver,
    ValidatorSpec,
)
from paceline.types import INIT_STEP, Measured, Sums


@pytest.mark.parametrize("event", ["nothing", "restart", "rewind"])
def test_every_worker_that_leaves_a_phase_gets_the_metrics_of_its_end(event: str) -> None:
    """A script may branch on the metrics, so a late or restarted worker must see the same values."""
    job = CoordinatorKit(servers=2, slots=1, rewinds=True, checkpoint_steps=2).start(begin=False)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), ValidatorSpec(0, "accuracy", 100, 4, 4)))
        job.begin(worker, data_len=2)

    def validate(phase: int, total: float) -> PhaseOver:
        (slot,) = sent(job.turn("worker-0", phase=phase), EvalGrant)
        effects = job.evaluated("worker-0", slot, {"accuracy": Sums(total, 4.0)}, phase=phase)
        (over,) = sent(effects, PhaseOver)
        return over

    job.initialise().finish_step(0)
    assert validate(0, 1.0).metrics == {"accuracy": Measured(0.25, 1)}
    job.begin("worker-0", number=1, data_len=2)
    job.finish_step(1, phase=1)
    made = save(job, 2).checkpoint
    job.core.completed(made.folder, "", job.now)
    assert validate(1, 3.0).metrics == {"accuracy": Measured(0.75, 2)}
    if event == "restart":
        job.restart()
    elif event == "rewind":
        job.restart([made], resume=made.folder)
    if event != "nothing":
        for server in job.servers:
            server_back(job, server)
        worker_back(job, "worker-1", declared=1)
        job.now += 1.0
    effects = job.turn("worker-1", incarnation=job.core.incarnation)
    for slot in sent(effects, EvalGrant):  # the last version of the second phase is validated again
        effects = job.evaluated("worker-1", slot, {"accuracy": Sums(3.0, 4.0)}, incarnation=job.core.incarnation)
    assert [over.metrics for over in sent(effects, PhaseOver)] == [{"accuracy": Measured(0.25, 1)}]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_evaluation_after_the_last_phase_does_not_change_the_metrics_of_its_end(restarted: bool) -> None:
    job = CoordinatorKit(servers=2, slots=1, rewinds=True).start(begin=False)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), ValidatorSpec(0, "accuracy", 100, 4, 4)))
        job.say(worker, Declare(job.req(), ValidatorSpec(1, "test", 0, 4, 4)))
        job.begin(worker, data_len=2)
    job.initialise().finish_step(0)
    (slot,) = sent(job.turn("worker-0"), EvalGrant)
    (over,) = sent(job.evaluated("worker-0", slot, {"accuracy": Sums(1.0, 4.0)}), PhaseOver)
    (slot,) = sent(job.turn("worker-0", evaluation=1), EvalGrant)
    job.evaluated("worker-0", slot, {"more": Sums(4.0, 4.0)}, evaluation=1)
    if restarted:
        job.restart()
        for server in job.servers:
            server_back(job, server)
        worker_back(job, "worker-1", declared=2)
        job.now += 1.0
    (late,) = sent(job.turn("worker-1"), PhaseOver)
    assert late.metrics == over.metrics == {"accuracy": Measured(0.25, 1)}


def _validating(mode: str = "bsp", every: int = 2) -> CoordinatorKit:
    """A job of one slot a step that has committed step 0 and 1, and holds an open round on version 2."""
    job = CoordinatorKit(workers=2, slots=1, mode=mode).start(begin=False)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), ValidatorSpec(0, "accuracy", every, 4, 4, 0)))
        job.begin(worker, data_len=40)
    job.initialise()
    return job


def _step(job: CoordinatorKit, worker: str = "worker-0") -> Grant:
    """Compute one step by `worker`, which gets no validation slot, and commit it."""
    grant = job.lease(worker)
    job.seal(worker, grant)
    for server in job.servers:
        job.ready(server, grant.step, grant.fence)
    job.core.tables.leases.abandon_open(worker)
    return grant


def test_a_result_is_seen_every_steps_after_its_version_and_leases_of_that_step_wait_for_it() -> None:
    job = _validating()
    assert [_step(job).step for _ in range(2)] == [0, 1]
    (slot,) = sent(job.turn("worker-1"), EvalGrant)
    assert slot.version == 2
    for step in (2, 3):
        assert (_step(job).step, job.core.watermark.low) == (step, step + 1)
    (later,) = sent(job.turn("worker-0"), EvalGrant)
    assert later.version == 4
    effects = job.evaluated("worker-0", later, {"accuracy": Sums(3.0, 4.0)})
    assert sent(effects, Grant) == [], "step 4 waits for version 2, not for version 4"
    effects = job.evaluated("worker-1", slot, {"accuracy": Sums(1.0, 4.0)})
    grants = sent(effects, Grant)
    assert [grant.step for grant in grants][:1] == [4]
    assert grants[0].metrics == {"accuracy": Measured(0.25, 2)}, "the result on version 4 is there, and not seen yet"


def test_every_turn_of_a_step_sees_the_same_metrics_however_late_it_is_leased() -> None:
    job = _validating(every=1)
    _step(job)
    (slot,) = sent(job.turn("worker-0"), EvalGrant)
    (first,) = sent(job.evaluated("worker-0", slot, {"accuracy": Sums(1.0, 4.0)}), Grant)
    assert (first.step, first.metrics) == (1, {}), "step 1 does not see version 1"
    job.seal("worker-0", first)
    for server in job.servers:
        job.ready(server, 1, first.fence)
    (slot,) = sent(job.turn("worker-1"), EvalGrant)
    assert slot.version == 2
    job.evaluated("worker-1", slot, {"accuracy": Sums(2.0, 4.0)})
    held = next(lease.worker for lease in job.core.tables.leases.live.all() if lease.slot.step == 2)
    other = next(worker for worker in job.workers if worker != held)
    job.core.lost(held, "killed", job.now)
    again = job.lease(other)
    assert (again.step, again.metrics) == (2, {"accuracy": Measured(0.25, 1)}), "version 2 is known, and not seen yet"


def test_with_a_window_no_lease_waits_for_a_validation() -> None:
    job = _validating("asp")
    assert [_step(job).step for _ in range(2)] == [0, 1]
    (slot,) = sent(job.turn("worker-1"), EvalGrant)
    assert slot.version == 2
    for step in (2, 3, 4, 5):
        for grant in sent(job.turn("worker-0"), EvalGrant):
            job.evaluated("worker-0", grant, {"accuracy": Sums(3.0, 4.0)})
            job.core.tables.leases.abandon_open("worker-0")
        assert _step(job).step == step


def test_the_last_segment_from_a_step_on_decides() -> None:
    first, second = segment(slots=2, end_step=5), segment(step=5, slots=3, end_step=9, window=2, data_len=24)
    schedule = Schedule([first, second])
    assert [schedule.segment(t) for t in (0, 4, 5, 8)] == [first, first, second, second]
    assert [schedule.num_slots(t) for t in (INIT_STEP, 0, 5)] == [1, 2, 3]
    assert [schedule.window(t) for t in (INIT_STEP, 0, 5)] == [0, 0, 2]
    assert [schedule.covers(t) for t in (INIT_STEP, 0, 8, 9)] == [True, True, True, False]


def test_a_segment_decides_until_the_next_one_begins() -> None:
    segments = [segment(step=step, slots=slots, end_step=step + 4) for step, slots in ((0, 2), (4, 3), (8, 1))]
    schedule = Schedule(segments)
    assert [schedule.segment(step) for step in (0, 3, 4, 7, 8, 11)] == [s for s in segments for _ in range(2)]


def test_a_segment_that_closes_the_job_takes_effect_at_once() -> None:
    schedule = Schedule([segment(end_step=5)])
    assert schedule.num_slots(3) == 2
    schedule.append(segment(step=3, offset=12, end_step=3, slots=1))
    assert schedule.end_step == 3
    assert not schedule.covers(3)
    assert schedule.num_slots(3) == 1
    schedule.append(segment(step=2, offset=8, end_step=2))
    assert [s.step for s in schedule.segments] == [0, 2]
