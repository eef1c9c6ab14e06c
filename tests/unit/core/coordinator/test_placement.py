"""The placement: copies, failover, and servers that are lost and return."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.placed_job import compute, epoch, kill, placed, ready, replicated_job, returns, tick, worker_at

from paceline.core.effects import (
    IncarnationFact,
    PlacementFact,
    Send,
    Write,
)
from paceline.messages import (
    Chained,
    Committed,
    Copied,
    CopyOver,
    PhaseOver,
    PlacementRequest,
    Prepared,
    Refused,
    Saved,
    Scale,
    Turn,
)
from paceline.types import Placement


def test_a_worker_may_ask_for_the_placement_again() -> None:
    job = CoordinatorKit().start()
    for _ in range(2):
        assert len(sent(job.say("worker-0", PlacementRequest(job.req(), 1)), Prepared)) == 1


def test_every_block_has_its_copies_on_other_servers() -> None:
    where = placed(replicated_job(replicas=2))
    assert all(len({*where.copies(b)}) == 3 for b in range(len(where.owners)))


def test_a_repeated_turn_at_the_end_of_a_phase_is_answered_with_the_new_placement() -> None:
    """A worker that has not read the last version yet must read it from other servers."""
    job = replicated_job()
    for step in range(3):
        ready(job, step, compute(job, step))
    request = Turn(job.req(), 0, 0)
    (over,) = sent(job.say("worker-1", request), PhaseOver, "worker-1")
    assert sent(job.say("worker-1", request), PhaseOver) == [over], (
        "the answer is the same while the placement is the same"
    )
    kill(job, "server-0")
    (anew,) = sent(job.say("worker-1", request), PhaseOver, "worker-1")
    assert (over.version, over.epoch) == (3, 1)
    assert (anew.version, anew.epoch) == (3, 2)


def test_a_worker_keeps_what_it_has_read_when_the_placement_changes() -> None:
    moved = Prepared(0, 1, 0, Placement(2, ("server-1", "server-1"), {"server-1": ""}))
    core = worker_at((4, 4))
    core.place(moved)
    assert core.model.held == {"server-1": 4}
    core = worker_at((4, 5))
    core.place(moved)
    assert core.model.held == {"server-1": -1}, "a worker reads blocks again if they are of several versions"


def test_a_returning_server_joins_an_in_sync_set_only_when_its_copy_is_complete() -> None:
    job = replicated_job()
    kill(job, "server-0")
    node = returns(job, "server-0")
    tick(job)
    (server, blocks), *more = placed(job).joining
    assert (server, more) == (node, [])
    assert all(node not in placed(job).copies(b) for b in range(len(placed(job).owners)))
    old = epoch(job)
    source = placed(job).owners[blocks[0]]
    assert job.say(node, Copied(0, old - 1, source)) == []
    effects = job.say(node, Copied(0, old, source))
    assert isinstance(effects[0], Write)
    assert len(sent(effects, CopyOver, node)) == 1
    assert node in placed(job).copies(blocks[0])
    assert epoch(job) == old, "the epoch stays: the other servers need no new placement"
    job.restart()
    assert node in placed(job).copies(blocks[0])


def test_the_loss_of_a_member_ends_a_copy_and_only_members_become_primaries() -> None:
    job = replicated_job(replicas=2)
    kill(job, "server-0")
    node = returns(job, "server-0")
    tick(job)
    effects = kill(job, "server-1")
    assert written(effects, IncarnationFact) == [], "server-2 has every block, so there is no rewind"
    assert set(placed(job).owners) == {"server-2"}
    assert node not in placed(job).holders


def test_a_number_of_servers_below_the_number_of_copies_is_refused() -> None:
    job = replicated_job()
    (refused,) = sent(job.say("engine", Scale(job.req(), 0, 1)), Refused)
    assert refused.rule == "replicas"
    assert job.core.tables.members.wanted_servers == 3


def test_a_commit_is_sent_to_every_server_with_a_copy() -> None:
    job = replicated_job()
    effects = ready(job, 0, compute(job, 0))
    assert {s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Committed)} == set(
        job.core.tables.placed.holders
    )


def test_a_copy_that_differs_from_its_primary_is_made_again() -> None:
    job = replicated_job(checkpoint_steps=1)
    ready(job, 0, compute(job, 0))
    assert job.core.machines.checkpoints.saving == 1
    before = placed(job)
    backup = before.backups[0][0]
    same, other = ((0, b"right"),), ((0, b"wrong"),)
    assert job.say(backup, Chained(0, epoch(job), 0, other)) == [], "a chain of another version is not compared"
    assert job.say(backup, Chained(0, epoch(job), 1, same)) == []
    chains = tuple((b, b"right") for b, owner in enumerate(before.owners) if owner == before.owners[0])
    assert written(job.say(before.owners[0], Saved(0, epoch(job), 1, (), chains)), PlacementFact) == []
    (fact,) = written(job.say(backup, Chained(0, epoch(job), 1, other)), PlacementFact)
    assert backup not in fact.placement.copies(0)
    assert all(fact.placement.copies(b) == before.copies(b) for b in range(1, len(before.owners)))
    assert (fact.failover, job.core.tables.incarnation.rewinds) == (False, 0)
    assert fact.why == f"copies on {backup} are not equal to their primaries'"
    tick(job)
    assert [server for server, blocks in placed(job).joining if 0 in blocks] == [backup]
