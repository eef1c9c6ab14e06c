"""Commits: what the row of a step contains, and which attempts count."""

from __future__ import annotations

from tests.kit.core import HYPER, CoordinatorKit, fence, sent, written
from tests.kit.restarted_job import trained

from paceline.core.effects import (
    LogRow,
)
from paceline.messages import (
    Choose,
    Ready,
    Receipt,
    Sealed,
)
from paceline.types import Commit


def test_a_commit_carries_the_fences_and_the_numbers_of_its_step() -> None:
    job = CoordinatorKit(servers=2).start().initialise()
    grants = [job.lease(w) for w in job.workers]
    for slot, (worker, grant) in enumerate(zip(job.workers, grants, strict=True)):
        report = Sealed(0, grant.slot, grant.fence, 1.0 if slot else 0.0, HYPER, {"loss": float(slot)}, 0.1)
        job.turn(worker, sealed=report)
    fences = tuple(g.fence for g in grants)
    job.say("server-0", Ready(0, 1, 0, fences, 1, 2, ()))
    effects = job.say("server-1", Ready(0, 1, 0, fences, 0, 5, ()))
    (commit,) = written(effects, Commit)
    assert (commit.fences, commit.hyper, commit.staleness, commit.lag) == (fences, HYPER, 1, 5)
    assert [r.values for r in written(effects, LogRow)] == [{"loss": 0.5}]
    totals = job.core.totals
    assert (totals.samples, totals.skipped_slots, totals.max_staleness, totals.max_lag) == (2.0, 1, 1, 5)
    assert job.core.watermark.low == 1


def test_a_ready_that_is_repeated_or_of_another_epoch_or_of_a_closed_step_changes_nothing() -> None:
    job = CoordinatorKit(slots=1).start().initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    assert job.say("server-0", Ready(0, 2, 0, (grant.fence,), 0, 0, ())) == []
    assert len(written(job.ready("server-0", 0, grant.fence), Commit)) == 1
    assert job.ready("server-0", 0, grant.fence) == []
    assert job.say("server-0", Receipt(0, 1, 0, 0, grant.fence)) == []
    assert job.ready("server-0", 99, grant.fence) == []
    assert len(job.core.tables.gate) == 0


def test_a_choice_of_attempts_is_sent_again_to_a_server_that_missed_it() -> None:
    job = CoordinatorKit(deterministic=False).start().initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    receipt = Receipt(0, 1, 0, grant.slot, grant.fence)
    assert len(sent(job.say("server-0", receipt), Choose)) == 1
    assert len(sent(job.say("server-0", receipt), Choose)) == 1


def test_wasted_attempts_are_counted() -> None:
    job = CoordinatorKit(slots=1).start().initialise()
    first = job.lease("worker-0")
    job.seal("worker-0", first)
    job.core.lost("worker-0", "killed", job.now)
    job.core.tick(1.0)
    second = job.lease("worker-1")
    assert second.step == 0
    job.seal("worker-1", second)
    job.ready("server-0", 0, first.fence)
    assert job.core.totals.wasted_slots == 1


def test_a_commit_records_the_servers_that_used_other_interchangeable_attempts() -> None:
    job = trained(0)
    first, second = job.lease("worker-0"), job.lease("worker-1")
    job.seal("worker-0", first)
    job.seal("worker-1", second)
    assert job.core.placement is not None
    job.ready("server-0", 0, first.fence, second.fence)
    other = fence(77)
    (commit,) = written(job.ready("server-1", 0, first.fence, other), Commit)
    blocks = tuple(b for b, owner in enumerate(job.core.placement.owners) if owner == "server-1")
    assert commit.fences == (first.fence, second.fence)
    assert commit.variants == ((blocks, (first.fence, other)),)
