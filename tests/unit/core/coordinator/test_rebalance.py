"""Planned changes of the placement, and when they are made."""

from __future__ import annotations

import pytest
from tests.kit.core import HYPER, CoordinatorKit, fence, segment, sent, turn_of
from tests.kit.placed_job import (
    compute,
    epoch,
    kill,
    placed,
    ready,
    replaced,
    replicated_job,
    returns,
    settle,
    tick,
    worker_at,
)

from paceline.core.coordinator.tables.pins import VALIDATION
from paceline.core.effects import Complete
from paceline.messages import (
    Grant,
    Prepared,
    Revoke,
    Saved,
    Scale,
    Seal,
)
from paceline.types import UNLIMITED, Placement


def written_whole(job: CoordinatorKit) -> None:
    """Report that every primary has written its part of the current checkpoint."""
    version = job.core.machines.checkpoints.saving
    assert version is not None
    for server in job.core.tables.placed.owners:
        chains = tuple((b, b"chain") for b, owner in enumerate(placed(job).owners) if owner == server)
        for effect in job.say(server, Saved(0, epoch(job), version, (), chains)):
            if isinstance(effect, Complete):
                job.wrote(job.core.completed(effect.checkpoint.folder, "", job.now))
    assert job.core.machines.checkpoints.saving is None


def test_a_failover_revokes_the_lease_of_a_worker() -> None:
    job = replicated_job()
    grant = job.lease("worker-0")
    assert [r.fence for r in sent(kill(job, "server-0"), Revoke, "worker-0")] == [grant.fence]


def test_a_new_placement_ends_the_waits_for_void_steps_and_removed_servers() -> None:
    core = worker_at((4, 4))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20, window=UNLIMITED), True)
    core.handle("coordinator", grant, (), 0.0)
    core.push(0.0, {s: ((), (), Seal(1.0, (), ())) for s in ("server-0", "server-1")})
    core.sealed(0.0, core.turn.report(1.0, HYPER, {}, 0.1))
    assert (core.reports.last_step, len(core.transfers.unacked)) == (4, 2)
    core.place(Prepared(0, 1, 0, Placement(2, ("server-1", "server-1"), {"server-1": ""})))
    assert (core.reports.last_step, len(core.transfers.unacked)) == (-2, 1)
    assert core.reconnected(0.0)[0].message.leases == ()  # type: ignore[attr-defined]


def test_redundancy_and_balance_are_restored() -> None:
    job = replicated_job()
    kill(job, "server-0")
    node = returns(job, "server-0")
    settle(job)
    where = placed(job)
    sets = [where.copies(b) for b in range(len(where.owners))]
    assert all(len(copies) == 2 for copies in sets)
    assert not where.joining
    assert set(where.owners) == {node, "server-1", "server-2"}
    at = epoch(job)
    settle(job, 5)
    assert epoch(job) == at, "a balanced placement does not change again"


def test_copies_begin_after_3_seconds_without_a_commit() -> None:
    job = replicated_job()
    replaced(job)
    tick(job, 2.9)
    assert not placed(job).joining
    tick(job, 0.2)
    assert placed(job).joining


def test_copies_wait_longer_for_a_commit_when_steps_are_long() -> None:
    job = replicated_job()
    for step in range(2):
        grants = compute(job, step)
        job.now += 20.0
        ready(job, step, grants)
    kill(job, "server-0")
    compute(job, 2)
    returns(job, "server-0")
    tick(job, 20.0)
    assert not placed(job).joining
    tick(job, 41.0)
    assert placed(job).joining


def test_copies_are_not_begun_while_a_version_is_saved() -> None:
    job = replicated_job(checkpoint_steps=2, data_len=80)
    ready(job, 0, compute(job, 0))
    kill(job, "server-0")
    grants = compute(job, 1)
    returns(job, "server-0")
    ready(job, 1, grants)
    assert job.core.machines.checkpoints.saving == 2
    ready(job, 2, compute(job, 2))
    assert (job.core.machines.checkpoints.saving, placed(job).joining) == (2, ()), (
        "a new placement would drop what the servers have written of the checkpoint"
    )
    written_whole(job)
    ready(job, 3, compute(job, 3))
    assert not placed(job).joining, "the next checkpoint is due at once"
    written_whole(job)
    ready(job, 4, compute(job, 4))
    assert placed(job).joining


@pytest.mark.parametrize("hindrance", ["every version is saved", "every version is read for longer than a step"])
def test_copies_begin_within_16_seconds_though_every_commit_has_a_reason_to_wait(hindrance: str) -> None:
    saved = hindrance == "every version is saved"
    job = replicated_job(checkpoint_steps=1 if saved else 0, data_len=80)
    kill(job, "server-0")
    returns(job, "server-0")
    grants = compute(job, 0)
    step = 0
    while not placed(job).joining and job.now < 60.0:
        tick(job, 1.0)
        if not saved and step:
            job.core.tables.pins.discard(step - 1, VALIDATION)
        tick(job, 1.0)
        if placed(job).joining:
            break
        if not saved:
            job.core.tables.pins.add(job.core.version, VALIDATION)
        ready(job, step, grants)
        if saved and job.core.machines.checkpoints.saving is not None:
            written_whole(job)
        step += 1
        if not placed(job).joining:
            grants = compute(job, step)
    assert 10.0 < job.now < 16.0


def test_a_change_does_not_wait_for_a_commit_when_workers_are_cut_off() -> None:
    job = replicated_job()
    grants = replaced(job)
    job.core.tables.reach.cut(frozenset(job.workers))
    job.core.tables.reach.report(job.workers[0], placed(job).owners[0], job.now, 100.0)
    tick(job, 0.5)
    assert epoch(job) > grants[0].epoch, "the old placement may be the reason that the workers are cut off"


def test_copies_wait_while_an_older_version_must_be_readable() -> None:
    job = replicated_job()
    kill(job, "server-0")
    returns(job, "server-0")
    job.core.tables.pins.add(-1, VALIDATION)
    tick(job)
    assert not placed(job).joining
    job.core.tables.pins.discard(-1, VALIDATION)
    tick(job)
    assert placed(job).joining


def test_servers_are_added_and_drained() -> None:
    job = replicated_job(servers=2, replicas=0)
    job.say("engine", Scale(job.req(), 0, 3))
    node = returns(job, "server-2")
    settle(job)
    assert set(placed(job).owners) == {"server-0", "server-1", node}
    assert job.core.tables.members.wanted_workers == 2
    job.say("engine", Scale(job.req(), 0, 1))
    assert job.core.tables.members.draining == {"server-1", node}
    settle(job)
    assert placed(job).holders == ("server-0",)
    assert job.core.incarnation == 0
    job.restart()
    assert job.core.tables.members.wanted_servers == 1
