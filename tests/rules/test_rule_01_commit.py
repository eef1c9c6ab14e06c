"""Rule 1, commit: blocks and backups apply the commits of the log in its one order.

A server reports *ready* when a block and its in-sync backups have what the next version needs. When every block is
ready the coordinator writes the commit and then announces it. A pull in lock-step names exactly one version.

Upheld by:
- `core.coordinator.gate.Gate.passed`: a commit waits for every server and every slot
- `core.server.attempts.Attempts.replicated`: a primary is ready when its backups have the sum
- `core.server.dispatch.ServerCore._commit`: commits are applied in the order of the log, once
- `core.server.pulls.Pulls.pull` and `core.worker.server_requests.ServerRequests.receive`: no mixed reads
"""

from __future__ import annotations

from tests.kit.core import (
    HYPER,
    TENSORS,
    CoordinatorKit,
    Recorder,
    ServerKit,
    fence,
    segment,
    sent,
    written,
)
from tests.kit.placed_job import compute, placed, ready, small
from tests.kit.placed_server import Server, placement
from tests.kit.worker_core import ASP, SSP, WorkerKit, part

from paceline.core.effects import (
    Send,
    Write,
)
from paceline.core.server.block_store import SumKey
from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    Beat,
    Committed,
    Pull,
    PullReply,
    PushAck,
    Ready,
    Refused,
    Replicate,
    Replicated,
    Unpin,
)
from paceline.types import (
    INIT_STEP,
    Commit,
)


def test_a_commit_waits_until_every_server_is_ready() -> None:
    job = CoordinatorKit(servers=2).start().initialise()
    grants = [job.lease(w) for w in job.workers]
    for worker, grant in zip(job.workers, grants, strict=True):
        job.seal(worker, grant)
    fences = [g.fence for g in grants]
    assert written(job.ready("server-0", 0, *fences), Commit) == []
    assert written(job.ready("server-0", 0, *fences), Commit) == [], (
        "a repeated report of one server does not count for another"
    )
    (commit,) = written(job.ready("server-1", 0, *fences), Commit)
    assert (commit.version, commit.step, commit.fences) == (1, 0, tuple(fences))


def test_a_commit_waits_until_every_slot_is_reported() -> None:
    job = CoordinatorKit().start().initialise()
    grants = [job.lease(w) for w in job.workers]
    job.seal("worker-0", grants[0])
    assert written(job.ready("server-0", 0, *(g.fence for g in grants)), Commit) == []
    assert len(written(job.seal("worker-1", grants[1]), Commit)) == 1


def test_a_commit_is_written_before_it_is_announced() -> None:
    job = CoordinatorKit(servers=2).start().initialise()
    grants = [job.lease(w) for w in job.workers]
    for worker, grant in zip(job.workers, grants, strict=True):
        job.seal(worker, grant)
    job.ready("server-0", 0, *(g.fence for g in grants))
    effects = job.ready("server-1", 0, *(g.fence for g in grants))
    rows = [i for i, e in enumerate(effects) if isinstance(e, Write) and isinstance(e.row, Commit)]
    news = [i for i, e in enumerate(effects) if isinstance(e, Send) and isinstance(e.message, Committed)]
    assert len(rows) == 1
    assert len(news) == 2
    assert rows[0] < min(news)


def test_lock_step_commits_steps_in_order() -> None:
    job = CoordinatorKit(slots=1).start().initialise()
    first, second = job.lease("worker-0"), job.lease("worker-1")
    assert (first.step, second.step) == (0, 1)
    job.seal("worker-1", second)
    assert written(job.ready("server-0", 1, second.fence), Commit) == []
    job.seal("worker-0", first)
    (commit,) = written(job.ready("server-0", 0, first.fence), Commit)
    assert commit.step == 0


def test_a_server_applies_commits_in_log_order() -> None:
    server = ServerKit(segment(slots=1, data_len=10, window=3, end_step=5))
    server.push(0, 0, 5, base=0)
    server.push(1, 0, 6, base=0)
    server.commit(2, 0, 5)
    assert server.core.versions.applied == 0, "version 1 is missing"
    server.commit(1, 1, 6)
    server.commit(2, 0, 5)
    assert [(c.version, c.step) for _, c in server.store.applied] == [(0, INIT_STEP), (1, 1), (2, 0)]


def test_a_repeated_commit_is_applied_once() -> None:
    server = ServerKit()
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    server.commit(1, 0, 5, 6)
    server.commit(1, 0, 5, 6)
    assert [c.version for _, c in server.store.applied] == [0, 1]


def test_a_push_for_a_committed_step_changes_nothing() -> None:
    server = ServerKit()
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    server.commit(1, 0, 5, 6)
    assert sent(server.push(0, 0, 5), PushAck)[0].outcome == "late"
    assert server.core.attempts.steps == {}
    assert server.slots_added(0) == ["5", "6"]


def test_a_pull_in_lock_step_names_exactly_one_version() -> None:
    server = ServerKit()
    pull = Pull(50, 0, 1, 1)
    assert server.say(pull) == [], "version 1 is not there yet"
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    (reply,) = sent(server.commit(1, 0, 5, 6), PullReply)
    assert (reply.req, reply.version) == (50, 1)
    assert sent(server.say(Pull(51, 0, 1, 0)), Refused)[0].rule == "gone"


def test_an_acknowledgement_of_an_older_placement_makes_no_server_ready() -> None:
    server = Server("s0", placement(1, ("s0", "s1"))).begin()
    server.tell(server.assign(placement(2, ("s0", "s1")), at=0))
    (asked,) = sent(server.push(0, 5, epoch=2), Replicate)
    assert sent(server.say("s1", Replicated(asked.req, 0, 1)), Ready) == []
    assert len(sent(server.say("s1", Replicated(asked.req, 0, 2)), Ready)) == 1


def test_a_commit_is_sent_to_servers_that_hold_only_backups() -> None:
    job = small()
    assert (placed(job).owners, placed(job).backups) == (("server-0",), (("server-1",),))
    effects = ready(job, 0, compute(job, 0))
    assert [s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Committed)] == [
        "server-0",
        "server-1",
    ]


def test_backups_release_a_version_that_is_unpinned() -> None:
    server = Server("s1", placement(1, ("s0", "s1")))
    server.replicate("s0", INIT_STEP, 1)
    server.tell(Committed(1, 1, Commit(0, 0, INIT_STEP, (fence(1),), HYPER, 1.0, True, 0, 0)))
    store = server.core.backups.synced["s0"].group.store
    assert isinstance(store, Recorder)
    assert (store.kept, store.released) == ([0], [])
    server.tell(Unpin(1, 0, 0))
    assert store.released == [0]


def test_a_commit_does_not_wait_for_a_server_without_blocks() -> None:
    job = CoordinatorKit(servers=2, tensors=(TENSORS[1],)).start().initialise_with("server-0")
    assert job.core.version == 0
    assert sent(job.say("server-1", Beat("server-1", 0, 1, -1, 1)), Committed) == []


def test_version_0_is_committed_like_any_other() -> None:
    server = ServerKit(initialised=False)
    (ready,) = sent(server.push(INIT_STEP, 0, 5, base=-1), Ready)
    assert ready.fences == (fence(5),)
    server.push(INIT_STEP, 0, 6, base=-1)
    server.commit(0, INIT_STEP, 6)
    assert server.store.applied[0][0] == SumKey(INIT_STEP, fence(6))
    assert server.store.dropped == [SumKey(INIT_STEP, fence(5))]
    assert sent(server.push(INIT_STEP, 0, 7, base=-1), PushAck)[0].outcome == "late"


def test_a_primary_is_ready_only_when_every_backup_has_the_sum() -> None:
    server = Server("s0", placement(1, ("s0", "s1", "s2")))
    out = server.push(INIT_STEP, 1)
    first, second = sent(out, Replicate)
    assert sent(out, Ready) == []
    assert [s.to for s in out if isinstance(s.message, Replicate)] == ["s1", "s2"]
    assert sent(server.say("s1", Replicated(first.req, 0, 1)), Ready) == []
    assert sent(server.say("s1", Replicated(second.req, 0, 1)), Ready) == [], "s1 cannot answer for s2"
    (ready,) = sent(server.say("s2", Replicated(second.req, 0, 1)), Ready, "coordinator")
    assert ready.fences == (fence(1),)
    assert sent(server.say("s2", Replicated(second.req, 0, 1)), Ready) == []


def test_a_primary_also_waits_for_a_joining_copy() -> None:
    server = Server("s0", placement(1, ("s0", "s1"))).begin()
    server.tell(server.assign(placement(2, ("s0", "s1"), joining=(("s2", (0,)),)), at=0))
    member, joiner = sent(server.push(0, 5, epoch=2), Replicate)
    assert sent(server.say("s1", Replicated(member.req, 0, 2)), Ready) == []
    assert len(sent(server.say("s2", Replicated(joiner.req, 0, 2)), Ready)) == 1


def test_lock_step_pulls_exactly_version_t_and_a_window_pulls_a_minimum() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    assert {(p.exact, p.watermark) for p in sent(kit.grant(4), Pull)} == {(4, 0)}
    kit.core.ask(0.0, 0)
    assert {(p.exact, p.watermark, p.after) for p in sent(kit.grant(7, of=SSP), Pull)} == {(-1, 4, -2)}
    kit.core.ask(0.0, 0)
    assert {(p.exact, p.watermark) for p in sent(kit.grant(7, of=ASP), Pull)} == {(-1, 0)}


def test_a_worker_holds_a_version_when_its_last_part_has_arrived() -> None:
    kit = WorkerKit()
    kit.core.ask(kit.now, 0)
    reads = {s.to: s.message.req for s in kit.grant(3) if isinstance(s, Send) and isinstance(s.message, Pull)}
    kit.hear(part(reads["s1"], 3, 0, 1), "s1")
    assert len(kit.hear(part(reads["s0"], 3, 1), "s0", ("x",))) == 1, "the model is filled as each part arrives"
    assert (kit.core.model.held["s0"], kit.core.state) == (-1, WorkerState.PULLING)
    kit.hear(part(reads["s0"], 3, 1), "s0", ("x",))
    assert kit.core.state == WorkerState.PULLING, "a repeated part does not count twice"
    kit.hear(part(reads["s0"], 3, 0), "s0", ("x",))
    assert (kit.core.model.held["s0"], kit.core.state) == (3, WorkerState.COMPUTING)


def test_parts_of_two_versions_do_not_make_a_state() -> None:
    kit = WorkerKit()
    kit.core.ask(kit.now, 0)
    reads = {s.to: s.message.req for s in kit.grant(3, of=SSP) if isinstance(s, Send) and isinstance(s.message, Pull)}
    kit.hear(part(reads["s1"], 3, 0, 1), "s1")
    kit.hear(part(reads["s0"], 3, 0), "s0", ("x",))
    kit.hear(part(reads["s0"], 4, 1), "s0", ("x",))
    assert kit.core.state == WorkerState.PULLING
    assert kit.hear(part(reads["s0"], 3, 0, 1), "s0", ("x",)) == [], (
        "the part is of an older version than one that arrived before"
    )
    kit.hear(part(reads["s0"], 4, 0), "s0", ("x",))
    assert (kit.core.model.held["s0"], kit.core.state) == (4, WorkerState.COMPUTING)


def test_a_read_abandoned_half_way_is_repeated_in_full() -> None:
    kit = WorkerKit()
    kit.computing(0)
    kit.core.ask(kit.now, 0)
    reads = {s.to: s.message.req for s in kit.grant(1, 6) if isinstance(s, Send) and isinstance(s.message, Pull)}
    kit.hear(part(reads["s0"], 1, 0), "s0", ("x",))
    kit.core.ask(kit.now, 0)
    again = {s.to: s.message for s in kit.grant(1, 7) if isinstance(s, Send) and isinstance(s.message, Pull)}
    assert (again["s0"].have, again["s1"].have) == (-1, 0)
