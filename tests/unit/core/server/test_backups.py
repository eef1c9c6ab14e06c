"""Copies of other primaries' blocks: backups in sync, changes of placement, joining copies."""

from __future__ import annotations

from tests.kit.core import HYPER, Recorder, fence, plan, segment, sent
from tests.kit.placed_server import ALL, Server, joined, placement

from paceline.core.server.block_store import SumKey
from paceline.messages import (
    Beat,
    Chained,
    Committed,
    Copied,
    CopyOver,
    CopyPart,
    CopyPartAck,
    NotLoaded,
    Pull,
    PullReply,
    Ready,
    Refused,
    Replicate,
    Replicated,
)
from paceline.types import INIT_STEP, Commit

# ---------------------------------------------------------------- a backup


def test_a_backup_applies_the_sum_and_the_fences_of_its_primary() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    follower, before = server.core.backups.synced["s0"], dict(server.core.backups.synced["s0"].group.chains)
    (reply,) = sent(server.replicate("s0", 0, 7), Replicated)
    assert reply.req == 7
    server.tell(
        Committed(1, server.core.assignment.epoch, Commit(0, 1, 0, (fence(8),), HYPER, 1.0, False, 0, 0))
    )  # names another attempt: attempts are interchangeable
    store = follower.group.store
    assert isinstance(store, Recorder)
    assert [key for key, _ in store.applied] == [SumKey(INIT_STEP, fence(1)), SumKey(0, None)]
    other = Server("s1", placement(1, ("s0", "s1"))).begin()
    other.replicate("s0", 0, 8)
    other.tell(Committed(1, other.core.assignment.epoch, Commit(0, 1, 0, (fence(8),), HYPER, 1.0, False, 0, 0)))
    assert follower.group.chains != before
    assert follower.group.chains != other.core.backups.synced["s0"].group.chains, "the chain names the attempts"


def test_a_backup_reports_its_hash_chains_when_a_version_is_saved() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    server.replicate("s0", 0, 7)
    row = Commit(0, 1, 0, (fence(7),), HYPER, 1.0, False, 0, 0)
    (told,) = sent(server.tell(Committed(1, 1, row, save=True)), Chained)
    assert told.version == 1
    assert dict(told.chains) == server.core.backups.synced["s0"].group.chains
    assert len(told.chains) == ALL


def test_a_repeated_sum_is_stored_once_and_answered_each_time() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    for _ in range(3):
        assert len(sent(server.replicate("s0", 0, 7), Replicated)) == 1
    store = server.core.backups.synced["s0"].group.store
    assert isinstance(store, Recorder)
    assert len(store.installed) == 2
    server.commit(1, 7)
    assert len(sent(server.replicate("s0", 0, 7), Replicated)) == 1, "a late repetition is answered"
    assert len(store.installed) == 2


def test_a_sum_of_a_newer_placement_waits_and_one_of_an_older_is_refused() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    assert server.replicate("s0", 0, 7, epoch=2) == []
    out = server.tell(server.assign(placement(2, ("s0", "s1")), at=0))
    assert [r.req for r in sent(out, Replicated, "s0")] == [7]
    (refused,) = sent(server.replicate("s0", 0, 8, epoch=1), Refused)
    assert refused.rule == "epoch"


def test_a_sum_that_is_not_from_the_primary_is_ignored() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    assert server.replicate("s2", 0, 7) == []
    assert server.core.backups.synced["s0"].sums == {}


# ---------------------------------------------------------------- another placement


def test_a_promoted_backup_answers_from_its_copies() -> None:
    server = Server("s1", placement(1, ("s0", "s1"), ("s1", "s0"))).begin()
    chains = dict(server.core.backups.synced["s0"].group.chains) | dict(server.core.own.chains)
    assert server.say("worker-0", Pull(1, 0, 2, 0, blocks=(0, 1))) == [], (
        "the pull is parked: the reader is in a newer placement"
    )
    out = server.tell(server.assign(placement(2, ("s1",)), at=0))
    assert [r.version for r in sent(out, PullReply, "worker-0")] == [0]
    assert dict(server.core.own.chains) == chains
    assert server.core.backups.synced == {}


def test_a_server_outside_of_all_sets_drops_its_blocks() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    server.tell(server.assign(placement(2, ("s0",)), at=7))
    assert not server.core.backups
    assert sent(server.core.tick(10.0), Beat)[0].applied == -2
    assert server.commit(1, 5) == []


# ---------------------------------------------------------------- a copy is made


def test_a_copy_is_reported_when_it_has_caught_up() -> None:
    primary, joiner, out = joined()
    (part,) = [s for s in out if isinstance(s.message, CopyPart)]
    (asked,) = sent(primary.push(0, 5, epoch=2), Replicate)
    assert asked.joining
    (reply,) = sent(joiner.say("s0", asked, ()), Replicated)
    assert len(sent(primary.say("s1", reply), Ready)) == 1, "the copy has the sum, but not yet the version before it"
    assert sent(joiner.commit(1, 5), Copied) == []
    assert sent(joiner.core.tick(1.0), Copied) == []
    caught_up = joiner.say("s0", part.message, part.payload)
    assert [c.source for c in sent(caught_up, Copied, "coordinator")] == ["s0"]
    (ack,) = sent(caught_up, CopyPartAck, "s0")
    primary.say("s1", ack)
    primary.commit(1, 5)
    assert joiner.core.backups.joining["s0"].group.chains == primary.core.own.chains
    assert len(sent(joiner.core.tick(2.0), Copied)) == 1
    joiner.tell(CopyOver(1, 0, 2, "s0"))
    assert sent(joiner.core.tick(3.0), Copied) == []
    joiner.tell(joiner.assign(placement(3, ("s1", "s0")), at=1))
    assert joiner.core.own.chains == primary.core.own.chains


def test_a_complete_copy_is_reported_at_once() -> None:
    _, joiner, out = joined()
    (part,) = [s for s in out if isinstance(s.message, CopyPart)]
    assert [c.source for c in sent(joiner.say("s0", part.message, part.payload), Copied)] == ["s0"]
    assert sent(joiner.say("s0", part.message, part.payload), Copied) == [], (
        "a repeated part is not reported at once; the next heartbeat repeats the report"
    )
    assert len(sent(joiner.core.tick(1.0), Copied)) == 1


def test_a_primary_waits_for_a_copy_that_is_four_commits_behind() -> None:
    primary, joiner, out = joined()
    (part,) = [s for s in out if isinstance(s.message, CopyPart)]
    answered = 0
    for step in range(6):
        (asked,) = sent(primary.push(step, 5 + step, epoch=2), Replicate)
        replies = sent(joiner.say("s0", asked, ()), Replicated)
        answered += len(replies)
        if not replies:
            break
        for reply in replies:
            primary.say("s1", reply)
        primary.commit(step + 1, 5 + step)
        joiner.commit(step + 1, 5 + step)
    assert answered == 4
    assert [r.req for r in sent(joiner.say("s0", part.message, part.payload), Replicated)] == [asked.req]


def test_a_copy_has_not_caught_up_while_the_sum_of_a_commit_is_missing() -> None:
    """A primary waits for joining servers; a copy without that sum would differ from the others."""
    primary, joiner, out = joined()
    (part,) = [s for s in out if isinstance(s.message, CopyPart)]
    (asked,) = sent(primary.push(0, 5, epoch=2), Replicate)
    joiner.commit(1, 5)
    assert sent(joiner.say("s0", part.message, part.payload), Copied) == []
    assert sent(joiner.core.tick(1.0), Copied) == []
    assert joiner.core.backups.chains == {}, "the chains of an incomplete copy are not compared"
    assert len(sent(joiner.say("s0", asked, ()), Copied)) == 1


def test_the_parts_of_a_copy_may_come_in_any_order() -> None:
    _, joiner, _ = joined()
    first, last = (CopyPart(n, 0, 2, 0, n, 2, (), ((n, b"chain"),)) for n in range(2))
    for part in (last, last):
        assert len(sent(joiner.say("s0", part), CopyPartAck)) == 1
        assert sent(joiner.core.tick(joiner.now), Copied) == []
        joiner.now += 1.0
    assert len(sent(joiner.say("s0", first), Copied)) == 1


def test_a_joining_copy_keeps_the_sums_of_queued_commits_when_the_job_ends() -> None:
    primary, joiner, out = joined()
    (part,) = [s for s in out if isinstance(s.message, CopyPart)]
    for step in range(3):
        (asked,) = sent(primary.push(step, 5 + step, epoch=2), Replicate)
        for reply in sent(joiner.say("s0", asked, ()), Replicated):
            primary.say("s1", reply)
        if step < 2:
            primary.commit(step + 1, 5 + step)
            joiner.commit(step + 1, 5 + step)
    stopped = plan(segment(slots=1, end_step=20), segment(step=2, slots=1, end_step=2), final=2)
    for server in (primary, joiner):
        server.tell(stopped)
    store = joiner.core.backups.joining["s0"].group.store
    assert isinstance(store, Recorder)
    assert store.dropped == [SumKey(2, None)], "the sum beyond the last version is never committed"
    assert len(sent(joiner.say("s0", part.message, part.payload), Copied)) == 1
    assert [commit.version for _, commit in store.applied] == [1, 2]
    assert joiner.core.backups.joining["s0"].group.chains == primary.core.own.chains


def test_the_next_placement_restarts_an_incomplete_copy() -> None:
    primary, joiner, _ = joined()
    again = placement(3, ("s0",), joining=(("s1", (0,)),))
    joiner.tell(joiner.assign(again, at=0))
    (part,) = [s.message for s in primary.tell(primary.assign(again, at=0)) if isinstance(s.message, CopyPart)]
    assert isinstance(part, CopyPart)
    assert {f.block for f in part.frames} == {0}
    assert joiner.core.backups.joining["s0"].caught_up is False


def test_a_kept_version_stays_readable_for_blocks_that_came_from_a_backup() -> None:
    server = Server("s1", placement(1, ("s0", "s1"), ("s1", "s0")))
    (asked,) = sent(server.push(INIT_STEP, 1), Replicate)
    server.say("s0", Replicated(asked.req, 0, 1))
    server.replicate("s0", INIT_STEP, 1)
    server.tell(
        Committed(1, server.core.assignment.epoch, Commit(0, 0, INIT_STEP, (fence(1),), HYPER, 1.0, True, 0, 0))
    )
    own = server.stores[0]
    assert own.kept == [0]
    server.tell(server.assign(placement(2, ("s1",)), at=0))
    assert own.kept == [0, 0]
    assert own.blocks == [1, 0]


def test_a_version_older_than_a_copy_is_released() -> None:
    """No reader needs the version any more, but a promoted server may not know that yet."""
    server = Server("s1", placement(1, ("s0", "s1"), ("s0",)))
    server.replicate("s0", INIT_STEP, 1)
    server.tell(
        Committed(1, server.core.assignment.epoch, Commit(0, 0, INIT_STEP, (fence(1),), HYPER, 1.0, True, 0, 0))
    )
    server.replicate("s0", 0, 2)
    server.commit(1, 2)
    server.tell(server.assign(placement(2, ("s0", "s1"), ("s0",), joining=(("s1", (1,)),)), at=1))
    part = CopyPart(9, 0, 2, 1, 0, 1, (), ((1, b"chain"),))
    assert len(sent(server.say("s0", part), Copied)) == 1
    assert sent(server.core.tick(1.0), Beat)[0].kept == (0,)
    server.tell(server.assign(placement(3, ("s1",)), at=1))
    assert sent(server.core.tick(2.0), Beat)[0].kept == ()
    (refused,) = sent(server.say("worker-0", Pull(1, 0, 3, 0, blocks=(0, 1))), Refused)
    assert refused.rule == "gone"
    assert [r.version for r in sent(server.say("worker-0", Pull(2, 0, 3, 1, blocks=(0, 1))), PullReply)] == [1]


def test_a_pull_of_another_servers_blocks_is_refused() -> None:
    server = Server("s0", placement(1, ("s0", "s1"), ("s1", "s0"))).begin()
    for blocks in ((0, 1), (7,)):
        (refused,) = sent(server.say("worker-0", Pull(1, 0, 1, 0, blocks=blocks)), Refused)
        assert refused.rule == "block"


def test_a_server_that_cannot_load_a_checkpoint_sends_no_copies() -> None:
    server = Server("s0", placement(1, ("s0", "s1"))).begin()
    (asked,) = sent(server.push(0, 5), Replicate)
    server.stores[0].damaged = "f"
    rewound = server.assign(placement(2, ("s0", "s1")), incarnation=1, folder="f", version=0)
    assert len(sent(server.tell(rewound), NotLoaded)) == 1
    for half in range(1, 20):
        assert sent(server.core.tick(half / 2), Replicate) == []
    assert server.core.greet("s1", 10.0) == []
    assert sent(server.say("s1", Replicated(asked.req, 0, 1)), Ready) == []


def test_repeated_requests_of_a_newer_placement_are_kept_once() -> None:
    server = Server("s1", placement(1, ("s0", "s1"))).begin()
    for _ in range(1000):
        server.replicate("s0", 0, 7, epoch=2)
    server.replicate("s0", 0, 8, epoch=2, part=1, parts=2)
    out = server.tell(server.assign(placement(2, ("s0", "s1")), at=0))
    assert [r.req for r in sent(out, Replicated)] == [7, 8]
