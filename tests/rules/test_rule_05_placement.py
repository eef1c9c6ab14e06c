"""Rule 5, placement: the in-sync set of each block and the placement epoch are durable.

A copy leaves its set, durably, before a commit is made without it. Only a member may be promoted; an empty set means a
rewind. A move or failover voids uncommitted receipts, and their slots are leased again. A peer that cannot reach
another reports it.

Upheld by:
- `core.coordinator.in_sync_sets.promote`: only a live member becomes primary
- `core.coordinator.in_sync_sets.shrink`: a copy leaves the set
- `core.coordinator.placement`: durable before announced; sets shrink; a change voids receipts
- `core.coordinator.reachability`: reports of unreachable peers
- `core.server.dispatch.ServerCore._assign`: a server enters a placement after the commits before it
- `core.server.pulls.Pulls.pull` and `core.server.attempts.Attempts.push`: other epochs are refused
"""

from __future__ import annotations

import pytest
from tests.kit.core import (
    HYPER,
    ServerKit,
    fence,
    frame,
    sent,
    state_of,
    written,
)
from tests.kit.placed_job import SMALL, compute, epoch, kill, placed, ready, replaced, replicated_job, returns, tick
from tests.kit.placed_server import ALL, Server, joined, placement
from tests.kit.worker_core import WorkerKit

from paceline.core.coordinator.in_sync_sets import promote
from paceline.core.effects import ChoiceFact, Effect, IncarnationFact, PlacementFact, Send, Write
from paceline.core.layout import cut
from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    Assign,
    Beat,
    Choose,
    Committed,
    Copied,
    CopyOver,
    CopyPart,
    Declare,
    EvalGrant,
    Grant,
    HeldLease,
    Pull,
    PullReply,
    Reachable,
    Ready,
    Receipt,
    Refused,
    Register,
    Replicate,
    Replicated,
    Revoke,
    Saved,
    Sealed,
    Summed,
    Turn,
    Unreachable,
    ValidatorSpec,
)
from paceline.types import Commit, Placement


def test_a_receipt_of_an_older_placement_does_not_count() -> None:
    job = replicated_job(deterministic=False)
    old = epoch(job)
    kill(job, "server-2")
    (first, _) = compute(job, 0)
    for at, counts in ((old, False), (epoch(job), True)):
        effects = [e for s in job.core.tables.placed.owners for e in job.say(s, Receipt(0, at, 0, 0, first.fence))]
        assert bool(written(effects, ChoiceFact)) == counts


def test_slots_summed_under_an_older_placement_do_not_advance_the_hold() -> None:
    job = replicated_job(servers=2, slots=6, hold=2)
    old = epoch(job)
    kill(job, "server-1")
    assert [job.lease(worker).slot for worker in job.workers] == [0, 1]
    for worker in job.workers:
        lease = next(ls for ls in job.core.tables.leases.live.open_leases() if ls.worker == worker)
        grant = Grant(0, 1, 0, epoch(job), 0, lease.slot.slot, 1, lease.fence, job.core.schedule.segment(0), True)
        assert sent(job.seal(worker, grant), Grant) == []
    assert sent(job.say("server-0", Summed(0, old, 0, 2)), Grant) == []
    assert len(sent(job.say("server-0", Summed(0, epoch(job), 0, 2)), Grant)) == 2


def test_a_report_of_an_unreachable_peer_under_an_older_placement_is_ignored() -> None:
    job = replicated_job()
    kill(job, "server-2")
    at = epoch(job)
    for job.now in (0.0, 0.5, 1.0):
        assert job.say("server-0", Unreachable("server-1", 3.0, at - 1)) == []
    assert (epoch(job), job.core.machines.reachability.cuts) == (at, [])


def test_a_restarted_coordinator_without_a_placement_continues_the_epoch_numbers() -> None:
    """The coordinator died between a rewind and the next placement: reports of older placements must not count."""
    job = replicated_job(servers=1, replicas=0)
    kill(job, "server-0")
    assert job.core.placement is None
    job.restart()
    effects = job.say("server-0/2", Register(job.req(), "server", "server-0", 2, "here", "at"))
    (fact,) = written(effects, PlacementFact)
    assert fact.placement.epoch == 2


def test_a_slot_whose_holder_was_lost_before_a_failover_is_leased_once_after_it() -> None:
    """The slot was sealed, so the coordinator waited for its pushes; the failover voids them."""
    job = replicated_job()
    tick(job, 0.0)
    compute(job, 0)
    job.wrote(job.core.lost("worker-1", "killed", job.now))
    assert job.core.machines.leasing.num_suspects
    kill(job, "server-0")
    assert not job.core.machines.leasing.num_suspects, "the coordinator does not wait for the lost holder"
    for slot in range(2):
        grant = job.lease("worker-0")
        assert (grant.step, grant.slot) == (0, slot)
        job.seal("worker-0", grant)
    effects = tick(job, job.spec.grace_s + 1.0)
    assert (sent(effects, Grant), sent(effects, Revoke), bool(job.core.tables.leases.requeued)) == ([], [], False)


def test_a_failover_revokes_validation_slots() -> None:
    job = replicated_job(workers=1, slots=1)
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "accuracy", 1, 8, 4)))
    ready(job, 0, compute(job, 0))
    (grant,) = sent(job.turn("worker-0"), EvalGrant, "worker-0")
    assert [r.fence for r in sent(kill(job, "server-0"), Revoke, "worker-0")] == [grant.fence]


def test_a_complete_copy_from_one_primary_joins_only_the_sets_of_that_primary() -> None:
    job = replicated_job()
    kill(job, "server-0")
    node = returns(job, "server-0")
    tick(job)
    ((_, blocks),) = placed(job).joining
    sources = {placed(job).owners[b] for b in blocks}
    assert sources == {"server-1", "server-2"}
    job.say(node, Copied(0, epoch(job), "server-1"))
    assert all((node in placed(job).copies(b)) == (placed(job).owners[b] == "server-1") for b in blocks)


def test_only_a_live_member_is_promoted() -> None:
    blocks = cut(SMALL)
    where = Placement(1, ("a",), {}, (("b", "c"),))
    assert promote(blocks, where, frozenset({"a"}), frozenset({"a", "c"})) == (("c",), ())
    assert promote(blocks, where, frozenset({"a"}), frozenset({"a", "d"})) is None


def test_a_server_with_an_incomplete_copy_refuses_promotion() -> None:
    _, joiner, _ = joined()
    with pytest.raises(AssertionError, match="never copied"):
        joiner.tell(joiner.assign(placement(3, ("s1", "s0")), at=0))


def test_a_new_server_refuses_an_assignment_of_blocks_at_a_later_version() -> None:
    with pytest.raises(AssertionError, match="never had"):
        Server("s1", placement(1, ("s0", "s1")), at=4)


def test_a_server_ahead_of_the_log_refuses_a_placement() -> None:
    server = Server("s0", placement(1, ("s0",))).begin()
    server.push(0, 5)
    server.commit(1, 5)
    with pytest.raises(AssertionError, match="version 1 is here, 0 was the last"):
        server.tell(server.assign(placement(2, ("s0",)), at=0))


def test_a_complete_copy_is_reported_again_under_a_new_placement() -> None:
    _, joiner, out = joined()
    (part,) = [s for s in out if isinstance(s.message, CopyPart)]
    assert len(sent(joiner.say("s0", part.message, part.payload), Copied)) == 1
    joiner.tell(joiner.assign(placement(3, ("s0",), joining=(("s1", (0,)),)), at=0))
    joiner.say("s0", CopyPart(9, 0, 3, 0, 0, 1, (), ((0, b"chain"),)))
    joiner.tell(CopyOver(1, 0, 2, "s0"))
    assert [c.epoch for c in sent(joiner.core.tick(1.0), Copied)] == [3]
    joiner.tell(CopyOver(1, 0, 3, "s0"))
    assert sent(joiner.core.tick(2.0), Copied) == []


def test_a_new_placement_cancels_saving_and_replication_of_the_old_one() -> None:
    server = Server("s0", placement(1, ("s0",))).begin()
    server.push(0, 5)
    server.tell(Committed(1, 1, Commit(0, 1, 0, (fence(5),), HYPER, 1.0, False, 0, 0), save=True))
    assert server.core.saving.version == 1
    assert len(server.core.saved(1, (), "")) == 1
    server.tell(server.assign(placement(2, ("s0", "s1")), at=1))
    assert sent(server.core.tick(1.0), Saved) == []
    assert server.core.saved(1, (), "") == []
    server.push(1, 6, epoch=2)
    assert server.core.replication.pending(1) == [(fence(6),)]
    server.tell(server.assign(placement(3, ("s0", "s1")), at=1))
    assert server.core.replication.pending(1) == []
    server.push(1, 7, epoch=3)
    server.tell(server.assign(placement(4, ("s0", "s1")), incarnation=1))
    assert server.core.replication.pending(1) == [], "a rewind cancels it too"


def test_only_in_sync_members_take_over_from_a_lost_server() -> None:
    job = replicated_job()
    before = placed(job)
    effects = kill(job, "server-0")
    after = placed(job)
    assert written(effects, IncarnationFact) == []
    (fact,) = written(effects, PlacementFact)
    assert (fact.placement, fact.failover) == (after, True)
    for block, owner in enumerate(after.owners):
        assert owner in before.copies(block), "only a member is promoted"
        assert set(after.copies(block)) == set(before.copies(block)) - {"server-0"}
    assert job.core.tables.placed.failovers == 1
    assert {s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Assign)} == {"server-1", "server-2"}


def test_an_empty_in_sync_set_causes_a_rewind() -> None:
    job = replicated_job()
    kill(job, "server-0")
    effects = kill(job, "server-1")
    assert len(written(effects, IncarnationFact)) == 1, "server-2 is alive but never received every block"


def test_a_new_placement_is_durable_before_it_is_announced() -> None:
    job = replicated_job()
    job.lease("worker-0")
    effects = kill(job, "server-0")
    told = [type(e.message) if isinstance(e, Send) else type(e) for e in effects]
    assert {Revoke, Assign} <= set(told), "the lease is revoked and the servers get the placement"
    assert told.index(Write) < min(told.index(Revoke), told.index(Assign))


def test_a_ready_report_of_an_older_placement_does_not_count() -> None:
    job = replicated_job()
    old = epoch(job)
    kill(job, "server-2")
    grants = compute(job, 0)
    assert written(ready(job, 0, grants, at=old), Commit) == []
    (commit,) = written(ready(job, 0, grants), Commit)
    assert commit.version == 1


def test_a_failover_voids_uncommitted_receipts_and_leases_their_slots_again() -> None:
    job = replicated_job()
    grants = compute(job, 0)
    ahead = [job.core.tables.leases.live.find(g.fence) for g in grants]
    assert all(ahead)
    effects = kill(job, "server-0")
    assert not any(g.fence in job.core.tables.leases.live for g in grants)
    again = [job.lease(worker) for worker in job.workers]
    assert {(g.step, g.slot) for g in again} == {(0, 0), (0, 1)}
    assert all(g.epoch == epoch(job) for g in again)
    assert written(ready(job, 0, grants), Commit) == [], "the seals belong to the old placement"
    for worker, grant in zip(job.workers, grants, strict=True):
        report = Sealed(grant.step, grant.slot, grant.fence, 1.0, HYPER, {}, 0.1)
        effects = job.say(worker, Turn(job.req(), 0, 0, report))
        assert written(effects, Commit) == []


def test_a_choice_voided_by_a_failover_stays_void_after_a_coordinator_restart() -> None:
    job = replicated_job(deterministic=False)
    grants = compute(job, 0)
    effects: list[Effect] = []
    for server in job.core.tables.placed.owners:
        effects += job.say(server, Receipt(0, epoch(job), 0, 0, grants[0].fence))
    assert len(written(effects, ChoiceFact)) == 1
    kill(job, "server-0")
    assert job.core.tables.gate.chosen(0, 0) is None
    job.restart()
    assert job.core.tables.gate.chosen(0, 0) is None
    heard: list[Effect] = []
    for server in job.core.tables.placed.holders:
        message = Register(job.req(), "server", server, 1, "here", "at", incarnation=0, epoch=epoch(job), applied=0)
        heard += job.say(server, message)
    assert sent(heard, Choose) == []


def test_a_restarted_coordinator_does_not_adopt_a_lease_of_an_older_placement() -> None:
    job = replicated_job()
    grant, old = job.lease("worker-0"), epoch(job)
    kill(job, "server-0")
    job.restart()
    held = HeldLease(grant.step, grant.slot, grant.fence, None, old)
    job.say("worker-0", Register(job.req(), "worker", "worker-0", 1, "here", None, job.job, leases=(held,)))
    assert grant.fence not in job.core.tables.leases.live


def test_an_unreachable_backup_leaves_the_set_durably_before_a_commit_without_it() -> None:
    job = replicated_job()
    before, primary = placed(job), placed(job).owners[0]
    backup = before.backups[0][0]
    assert job.say(primary, Unreachable(backup, 3.0, epoch(job) - 1)) == []
    assert job.say(primary, Unreachable(backup, 3.0, epoch(job))) == [], (
        "more reports may follow, so the coordinator waits"
    )
    job.now = 0.5
    effects = job.say(primary, Unreachable(backup, 3.5, epoch(job)))
    (fact,) = written(effects, PlacementFact)
    for block, owner in enumerate(before.owners):
        # Blocks of the other server keep their copy here: that server may be lost.
        without = {backup} if owner == primary else set()
        assert set(fact.placement.copies(block)) == set(before.copies(block)) - without
    assert fact.placement.epoch == before.epoch + 1
    for job.now in (1.0, 1.5):
        job.wrote(job.core.tick(job.now))
    assert all(server != backup or before.owners[b] != primary for server, bs in placed(job).joining for b in bs)


def test_a_worker_that_cannot_reach_a_primary_gets_no_leases_until_it_can() -> None:
    job = replicated_job(workers=3)
    peer = placed(job).owners[0]
    job.say("worker-0", Unreachable(peer, 3.0, epoch(job)))
    assert sent(job.turn("worker-0"), Grant) == []
    assert len(sent(job.turn("worker-1"), Grant, "worker-1")) == 1, "other workers get leases"
    assert len(sent(job.say("worker-0", Reachable(peer)), Grant, "worker-0")) == 1


def test_copies_begin_with_a_commit_so_that_no_work_is_void() -> None:
    job = replicated_job()
    grants = replaced(job)
    for _ in range(5):
        tick(job, 0.4)
    assert not placed(job).joining, "a new placement now would void the current work"
    before, wasted = epoch(job), job.core.totals.wasted_slots
    effects = ready(job, 0, grants)
    assert [commit.version for commit in written(effects, Commit)] == [1]
    assert placed(job).joining
    assert epoch(job) == before + 1
    assert job.core.totals.wasted_slots == wasted
    rows = [effect.row for effect in effects if isinstance(effect, Write)]
    at = next(n for n, row in enumerate(rows) if isinstance(row, Commit))
    assert [n for n, row in enumerate(rows) if isinstance(getattr(row, "fact", None), PlacementFact)] > [at]
    (announced,) = {m.epoch for m in sent(effects, Committed)}
    assert announced == before, "the commit was made under the old placement"
    assert {m.at for m in sent(effects, Assign)} == {1}


def test_a_pull_under_an_older_placement_is_refused() -> None:
    """A server that was replaced during a pause, or a worker that missed a move, must not mix placements."""
    server = ServerKit()
    (reply,) = server.core.handle("w", Pull(1, 0, 1, 0), (), 0.0)
    assert isinstance(reply.message, PullReply)
    assert sent(server.core.handle("w", Pull(2, 0, 0, 0), (), 0.0), Refused)[0].rule == "epoch"


def test_a_server_enters_a_placement_after_applying_every_commit_before_it() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    server.replicate("s0", 0, 7)
    (beat,) = sent(server.tell(server.assign(placement(2, ("s1", "s2")), at=1)), Beat)
    assert (beat.epoch, beat.applied) == (1, 0), "version 1 was committed under the old placement and has not arrived"
    assert server.tell(server.assign(placement(2, ("s1", "s2")), at=1)) == [], "the wait is reported once"
    (beat,) = sent(server.commit(1, 7), Beat)
    assert (beat.epoch, beat.applied) == (2, 1)
    assert set(server.core.own.blocks) == set(range(ALL))
    assert server.core.peers == {"s2": "at s2"}


def test_a_server_ignores_commits_of_a_placement_that_it_is_not_in() -> None:
    """A server that was declared lost without hearing of it has sums that were never committed."""
    server = Server("s0", placement(1, ("s0",))).begin()
    server.push(0, 5)
    row = Commit(0, 1, 0, (fence(9),), HYPER, 1.0, False, 0, 0)
    assert [b.epoch for b in sent(server.tell(Committed(1, 3, row)), Beat)] == [1], (
        "the server reports its own placement"
    )
    assert sent(server.tell(Committed(1, 3, row)), Beat) == [], "the server reports its placement once"
    assert server.core.versions.applied == 0


def test_a_placement_voids_uncommitted_sums() -> None:
    server = Server("s0", placement(1, ("s0", "s1"))).begin()
    (asked,) = sent(server.push(0, 5), Replicate)
    server.tell(server.assign(placement(2, ("s0",)), at=0))
    assert server.core.attempts.steps == {}
    assert server.say("s1", Replicated(asked.req, 0, 1)) == [], "the server does not report ready for void sums"
    assert server.core.tick(10.0)[0].message == Beat("s0", 0, 2, 0, 1, ())
    (refused,) = sent(server.push(0, 5), Refused)
    assert refused.rule == "epoch"
    assert len(sent(server.push(0, 6, epoch=2), Ready)) == 1


def test_a_server_refuses_blocks_that_it_never_received() -> None:
    server = Server("s2", placement(1, ("s0", "s1"), ("s0", "s2"))).begin()
    with pytest.raises(AssertionError, match="never copied"):
        server.tell(server.assign(placement(2, ("s2",)), at=0))
    empty = Server("s2", placement(1, ("s0", "s1")), at=4)
    with pytest.raises(AssertionError, match="never copied"):
        empty.tell(empty.assign(placement(2, ("s2",)), at=4))


def test_blocks_that_move_during_a_read_are_read_at_their_new_server() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    old = {send.to: send.message for send in kit.grant(0) if isinstance(send, Send) and isinstance(send.message, Pull)}
    out = kit.hear(kit.prepared(2, "s1", "s1"))
    (pull,) = sent(out, Pull)
    assert (pull.epoch, pull.blocks, pull.have) == (2, (0, 1), -1)
    assert kit.hear(PullReply(old["s0"].req, 0, 0, 0, (frame(0),)), "s0", ("value",)) == []
    assert kit.hear(PullReply(old["s1"].req, 0, 0, 0, (frame(1),)), "s1", ("value",)) == []
    assert state_of(kit.core) == WorkerState.PULLING
    kit.hear(PullReply(pull.req, 0, 0, 0, (frame(0), frame(1))), "s1", ("value", "value"))
    assert state_of(kit.core) == WorkerState.COMPUTING
    assert kit.core.model.held == {"s1": 0}
