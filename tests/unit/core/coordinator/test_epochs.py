"""What is said of another placement does not count, whoever says it; nobody goes on with what it does not have."""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.core import HYPER, Desk, Recorder, fence, sent, written
from tests.unit.core.coordinator.test_placement import compute, desk, epoch, kill, placed, ready, returns, tick
from tests.unit.core.server.test_backups import Server, joined
from tests.unit.core.server.test_backups import placement as sets

from paceline.core.effects import ChoiceFact, Complete, IncarnationFact, PlacementFact, Send
from paceline.core.layout import cut
from paceline.core.placement_plan import promote
from paceline.messages import (
    Chained,
    Committed,
    Copied,
    CopyOver,
    CopyPart,
    Declare,
    EvalGrant,
    Grant,
    NotLoaded,
    Ready,
    Receipt,
    Register,
    Replicate,
    Replicated,
    Revoke,
    Saved,
    SaveOver,
    Summed,
    Unpin,
    Unreachable,
    ValidatorSpec,
)
from paceline.types import INIT_STEP, Commit, Kind, Placement, TensorSpec

SMALL = (TensorSpec("weight", (10,), "float32", Kind.PARAMETER, 0),)


def small(**changes: Any) -> Desk:
    """One block: server-0 is its primary, server-1 has a copy."""
    job = Desk(servers=2, tensors=SMALL, replicas=1, rewinds=True, heartbeat_timeout_s=100.0, reach_s=100.0, **changes)
    return job.start().initialise_with("server-0")


# ---------------------------------------------------------------- the coordinator


def test_rule_5_a_receipt_of_an_older_placement_does_not_count() -> None:
    job = desk(deterministic=False)
    old = epoch(job)
    kill(job, "server-2")
    (first, _) = compute(job, 0)
    for at, counts in ((old, False), (epoch(job), True)):
        effects = [e for s in job.core.owners for e in job.say(s, Receipt(0, at, 0, 0, first.fence))]
        assert bool(written(effects, ChoiceFact)) == counts


def test_what_a_server_has_summed_under_an_older_placement_lets_nobody_go_further() -> None:
    job = desk(servers=2, slots=6, hold=2)
    old = epoch(job)
    kill(job, "server-1")
    assert [job.lease(worker).slot for worker in job.workers] == [0, 1]
    for worker in job.workers:
        lease = next(ls for ls in job.core.leases.open_leases() if ls.worker == worker)
        grant = Grant(0, 1, 0, epoch(job), 0, lease.slot.slot, 1, lease.fence, job.core.schedule.segment(0), True)
        assert sent(job.seal(worker, grant), Grant) == []
    assert sent(job.say("server-0", Summed(0, old, 0, 2)), Grant) == []
    assert len(sent(job.say("server-0", Summed(0, epoch(job), 0, 2)), Grant)) == 2


def test_files_and_chains_of_an_older_placement_do_not_belong_to_a_checkpoint() -> None:
    job = small(checkpoint_steps=1)
    ready(job, 0, compute(job, 0))
    old = epoch(job)
    for job.now in (0.0, 0.5):
        job.say("server-0", Unreachable("server-1", 3.0, old))
    assert (epoch(job), job.core.saving) == (old + 1, None), "what was being written is void"
    job.wrote(job.core.finish(job.now))
    assert job.core.saving == 1
    chains = ((0, b"right"),)
    assert job.say("server-1", Chained(0, old, 1, ((0, b"wrong"),))) == []
    effects = job.say("server-0", Saved(0, old, 1, (), chains))
    assert [type(e.message) for e in effects if isinstance(e, Send)] == [SaveOver]
    effects = job.say("server-0", Saved(0, epoch(job), 1, (), chains))
    assert [type(e) for e in effects] == [Complete]


def test_who_could_not_be_reached_under_an_older_placement_may_be_by_now() -> None:
    job = desk()
    kill(job, "server-2")
    at = epoch(job)
    for job.now in (0.0, 0.5, 1.0):
        assert job.say("server-0", Unreachable("server-1", 3.0, at - 1)) == []
    assert (epoch(job), job.core.cuts) == (at, [])


def test_a_server_that_could_not_load_for_an_older_placement_does_not_take_the_job_back_again() -> None:
    job = desk(servers=1, replicas=0, checkpoint_steps=1)
    ready(job, 0, compute(job, 0))
    chains = tuple((b, b"") for b in range(len(placed(job).owners)))
    (complete,) = job.say("server-0", Saved(0, epoch(job), 1, (), chains))
    assert isinstance(complete, Complete)
    job.wrote(job.core.completed(complete.checkpoint.folder, "", job.now))
    kill(job, "server-0")
    node = returns(job, "server-0")
    assert (job.core.incarnation, job.core.version) == (1, 1)
    assert job.say(node, NotLoaded(1, epoch(job) - 1, complete.checkpoint.folder, "damaged")) == []
    assert len(written(job.say(node, NotLoaded(1, epoch(job), complete.checkpoint.folder, "damaged")), IncarnationFact))


def test_placements_are_numbered_on_by_a_coordinator_that_begins_without_one() -> None:
    """It died after a rewind, before the placement that follows: what servers say of older ones must not count."""
    job = desk(servers=1, replicas=0)
    kill(job, "server-0")
    assert job.core.placement is None
    job.restart()
    effects = job.say("server-0/2", Register(job.req(), "server", "server-0", 2, "here", "at"))
    (fact,) = written(effects, PlacementFact)
    assert fact.placement.epoch == 2


def test_rule_5_a_slot_whose_holder_was_lost_before_a_failover_is_leased_once_after_it() -> None:
    """It was sealed, so others waited for what its holder had sent; all that is void now."""
    job = desk()
    tick(job, 0.0)
    compute(job, 0)
    job.wrote(job.core.lost("worker-1", "killed", job.now))
    assert job.core.suspects
    kill(job, "server-0")
    assert not job.core.suspects, "nobody waits for it any longer"
    for slot in range(2):
        grant = job.lease("worker-0")
        assert (grant.step, grant.slot) == (0, slot)
        job.seal("worker-0", grant)
    effects = tick(job, job.spec.grace_s + 1.0)
    assert (sent(effects, Grant), sent(effects, Revoke), job.core.leases.has_requeued) == ([], [], False)


def test_who_validates_is_told_when_the_blocks_change_hands() -> None:
    job = desk(workers=1, slots=1)
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "accuracy", 1, 8, 4)))
    ready(job, 0, compute(job, 0))
    (grant,) = sent(job.turn("worker-0"), EvalGrant, "worker-0")
    assert [r.fence for r in sent(kill(job, "server-0"), Revoke, "worker-0")] == [grant.fence]


def test_commits_go_to_copies_that_are_nobodys_primary() -> None:
    job = small()
    assert (placed(job).owners, placed(job).backups) == (("server-0",), (("server-1",),))
    effects = ready(job, 0, compute(job, 0))
    assert [s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Committed)] == [
        "server-0",
        "server-1",
    ]


def test_rule_5_who_has_the_copies_of_one_primary_is_no_member_of_the_sets_of_another() -> None:
    job = desk()
    kill(job, "server-0")
    node = returns(job, "server-0")
    tick(job)
    ((_, blocks),) = placed(job).joining
    sources = {placed(job).owners[b] for b in blocks}
    assert sources == {"server-1", "server-2"}
    job.say(node, Copied(0, epoch(job), "server-1"))
    assert all((node in placed(job).copies(b)) == (placed(job).owners[b] == "server-1") for b in blocks)


def test_rule_5_only_a_member_that_lives_is_promoted() -> None:
    blocks = cut(SMALL)
    where = Placement(1, ("a",), {}, (("b", "c"),))
    assert promote(blocks, where, "a", frozenset({"a", "c"})) == (("c",), ())
    assert promote(blocks, where, "a", frozenset({"a", "d"})) is None


# ---------------------------------------------------------------- a server


def test_rule_5_a_copy_that_is_not_complete_is_nothing_to_go_on_with() -> None:
    _, joiner, _ = joined()
    with pytest.raises(AssertionError, match="never copied"):
        joiner.tell(joiner.assign(sets(3, ("s1", "s0")), at=0))


def test_rule_5_a_server_that_was_never_there_does_not_begin_with_blocks_of_a_later_version() -> None:
    with pytest.raises(AssertionError, match="never had"):
        Server("s1", sets(1, ("s0", "s1")), at=4)


def test_rule_5_a_server_that_is_further_than_the_log_does_not_enter_a_placement() -> None:
    server = Server("s0", sets(1, ("s0",))).begin()
    server.push(0, 5)
    server.commit(1, 5)
    with pytest.raises(AssertionError, match="version 1 is here, 0 was the last"):
        server.tell(server.assign(sets(2, ("s0",)), at=0))


def test_a_copy_that_was_noted_for_an_older_placement_is_told_again_for_this_one() -> None:
    _, joiner, out = joined()
    (part,) = [s for s in out if isinstance(s.message, CopyPart)]
    assert len(sent(joiner.say("s0", part.message, part.payload), Copied)) == 1
    joiner.tell(joiner.assign(sets(3, ("s0",), joining=(("s1", (0,)),)), at=0))
    joiner.say("s0", CopyPart(9, 0, 3, 0, 0, 1, (), ((0, b"chain"),)))
    joiner.tell(CopyOver(1, 0, 2, "s0"))
    assert [c.epoch for c in sent(joiner.core.tick(1.0), Copied)] == [3]
    joiner.tell(CopyOver(1, 0, 3, "s0"))
    assert sent(joiner.core.tick(2.0), Copied) == []


def test_rule_1_an_answer_of_an_older_placement_makes_nobody_ready() -> None:
    server = Server("s0", sets(1, ("s0", "s1"))).begin()
    server.tell(server.assign(sets(2, ("s0", "s1")), at=0))
    (asked,) = sent(server.push(0, 5, epoch=2), Replicate)
    assert sent(server.say("s1", Replicated(asked.req, 0, 1)), Ready) == []
    assert len(sent(server.say("s1", Replicated(asked.req, 0, 2)), Ready)) == 1


def test_rule_5_what_was_being_written_or_sent_when_a_placement_ended_is_not_any_more() -> None:
    server = Server("s0", sets(1, ("s0",))).begin()
    server.push(0, 5)
    server.tell(Committed(1, 1, Commit(0, 1, 0, (fence(5),), HYPER, 1.0, False, 0, 0), save=True))
    assert server.core.saving == 1
    assert len(server.core.saved(1, (), "")) == 1
    server.tell(server.assign(sets(2, ("s0", "s1")), at=1))
    assert sent(server.core.tick(1.0), Saved) == []
    assert server.core.saved(1, (), "") == []
    server.push(1, 6, epoch=2)
    assert server.core.replicator.pending(1) == [(fence(6),)]
    server.tell(server.assign(sets(3, ("s0", "s1")), at=1))
    assert server.core.replicator.pending(1) == []
    server.push(1, 7, epoch=3)
    server.tell(server.assign(sets(4, ("s0", "s1")), incarnation=1))
    assert server.core.replicator.pending(1) == [], "nor when the job goes back"


def test_copies_let_go_of_a_version_that_need_not_be_readable_any_more() -> None:
    server = Server("s1", sets(1, ("s0", "s1")))
    server.replicate("s0", INIT_STEP, 1)
    server.tell(Committed(1, 1, Commit(0, 0, INIT_STEP, (fence(1),), HYPER, 1.0, True, 0, 0)))
    store = server.core.copies.followers["s0"].store
    assert isinstance(store, Recorder)
    assert (store.kept, store.released) == ([0], [])
    server.tell(Unpin(1, 0, 0))
    assert store.released == [0]
