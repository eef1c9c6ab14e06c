"""The rules that keep a run right, one test each: whoever removes a rule turns its test red.

The simulator breaks them too, by chance; here each has a name and the shortest story that needs it.
"""

from __future__ import annotations

import pytest
from tests.kit.core import BLOCKS, HYPER, Desk, ServerKit, fence, model, segment, sent, state_of, turn_of, written

from paceline.core.effects import Send, Write
from paceline.core.server.block_store import SumKey
from paceline.core.worker.turn import WorkerCore, WorkerState
from paceline.messages import (
    Abort,
    Assign,
    Choose,
    Committed,
    Grant,
    Plan,
    Prepared,
    Pull,
    PullReply,
    PushAck,
    Ready,
    Receipt,
    Refused,
    Register,
    Revoke,
    Unpin,
)
from paceline.types import INIT_STEP, Commit, Placement

# ---------------------------------------------------------------- duplicates


def test_rule_a_repeated_push_is_added_once() -> None:
    for whole in (False, True):
        server = ServerKit(segment(slots=1, data_len=10), whole=whole)
        assert sent(server.push(0, 0, 5), PushAck)[0].outcome == "held"
        assert sent(server.push(0, 0, 5), PushAck)[0].outcome == "duplicate"
        assert server.slots_added(0) == ["5"]


def test_rule_a_second_attempt_of_an_interchangeable_slot_is_not_added() -> None:
    server = ServerKit()
    server.push(0, 0, 5)
    assert sent(server.push(0, 0, 6), PushAck)[0].outcome == "duplicate"
    ready = sent(server.push(0, 1, 7), Ready)
    assert server.slots_added(0) == ["5", "7"]
    assert ready[0].fences == (fence(5), fence(7))


def test_rule_a_push_for_a_committed_step_changes_nothing() -> None:
    server = ServerKit()
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    server.commit(1, 0, 5, 6)
    assert sent(server.push(0, 0, 5), PushAck)[0].outcome == "late"
    assert server.core.steps == {}
    assert server.slots_added(0) == ["5", "6"]


def test_rule_a_repeated_commit_is_applied_once() -> None:
    server = ServerKit()
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    server.commit(1, 0, 5, 6)
    server.commit(1, 0, 5, 6)
    assert [c.version for _, c in server.store.applied] == [0, 1]


# ---------------------------------------------------------------- slot order


@pytest.mark.parametrize("whole", [False, True])
def test_rule_slots_are_summed_in_slot_order(whole: bool) -> None:
    server = ServerKit(segment(slots=3, data_len=60), whole=whole)
    for slot in (2, 0, 1):
        server.push(0, slot, 5 + slot)
    if whole:
        for slot in (2, 0, 1):
            server.tell(Choose(1, 0, 1, 0, slot, fence(5 + slot)))
    assert server.slots_added(0) == ["5", "6", "7"]


def test_rule_commits_are_applied_in_log_order() -> None:
    server = ServerKit(segment(slots=1, data_len=10, window=3, end_step=5))
    server.push(0, 0, 5, base=0)
    server.push(1, 0, 6, base=0)
    server.commit(2, 0, 5)
    assert server.core.applied == 0, "version 1 is missing"
    server.commit(1, 1, 6)
    server.commit(2, 0, 5)
    assert [(c.version, c.step) for _, c in server.store.applied] == [(0, INIT_STEP), (1, 1), (2, 0)]


# ---------------------------------------------------------------- the commit gate


def test_rule_a_commit_waits_until_every_server_is_ready() -> None:
    desk = Desk(servers=2).start().initialise()
    grants = [desk.lease(w) for w in desk.workers]
    for worker, grant in zip(desk.workers, grants, strict=True):
        desk.seal(worker, grant)
    fences = [g.fence for g in grants]
    assert written(desk.ready("server-0", 0, *fences), Commit) == []
    assert written(desk.ready("server-0", 0, *fences), Commit) == [], "one server twice is not two"
    (commit,) = written(desk.ready("server-1", 0, *fences), Commit)
    assert (commit.version, commit.step, commit.fences) == (1, 0, tuple(fences))


def test_rule_a_commit_waits_until_every_slot_is_reported() -> None:
    desk = Desk().start().initialise()
    grants = [desk.lease(w) for w in desk.workers]
    desk.seal("worker-0", grants[0])
    assert written(desk.ready("server-0", 0, *(g.fence for g in grants)), Commit) == []
    assert len(written(desk.seal("worker-1", grants[1]), Commit)) == 1


def test_rule_a_commit_is_written_before_it_is_announced() -> None:
    desk = Desk(servers=2).start().initialise()
    grants = [desk.lease(w) for w in desk.workers]
    for worker, grant in zip(desk.workers, grants, strict=True):
        desk.seal(worker, grant)
    desk.ready("server-0", 0, *(g.fence for g in grants))
    effects = desk.ready("server-1", 0, *(g.fence for g in grants))
    rows = [i for i, e in enumerate(effects) if isinstance(e, Write) and isinstance(e.row, Commit)]
    news = [i for i, e in enumerate(effects) if isinstance(e, Send) and isinstance(e.message, Committed)]
    assert len(rows) == 1
    assert len(news) == 2
    assert rows[0] < min(news)


def test_rule_lock_step_commits_steps_in_order() -> None:
    desk = Desk(slots=1).start().initialise()
    first, second = desk.lease("worker-0"), desk.lease("worker-1")
    assert (first.step, second.step) == (0, 1)
    desk.seal("worker-1", second)
    assert written(desk.ready("server-0", 1, second.fence), Commit) == []
    desk.seal("worker-0", first)
    (commit,) = written(desk.ready("server-0", 0, first.fence), Commit)
    assert commit.step == 0


# ---------------------------------------------------------------- attempts


def test_rule_only_a_whole_attempt_counts_where_attempts_differ() -> None:
    desk = Desk(servers=2, deterministic=False).start().initialise()
    lost = desk.lease("worker-0")
    desk.seal("worker-0", lost)
    desk.say("server-0", Receipt(0, 1, 0, lost.slot, lost.fence))
    desk.core.lost("worker-0", "killed", desk.now)
    again = desk.lease("worker-1")
    assert again.slot == lost.slot
    desk.seal("worker-1", again)
    assert sent(desk.say("server-1", Receipt(0, 1, 0, again.slot, again.fence)), Choose) == [], (
        "each server has an attempt, but not the same one"
    )
    chosen = sent(desk.say("server-0", Receipt(0, 1, 0, again.slot, again.fence)), Choose)
    assert [c.fence for c in chosen] == [again.fence] * 2


def test_rule_with_a_window_servers_must_be_ready_with_the_same_attempt() -> None:
    desk = Desk(servers=2, mode="ssp:3", slots=1).start().initialise()
    first = desk.lease("worker-0")
    desk.seal("worker-0", first)
    desk.ready("server-0", 0, first.fence)
    desk.core.lost("worker-0", "killed", desk.now)
    second = desk.lease("worker-1")
    assert second.step == 0
    desk.seal("worker-1", second)
    assert written(desk.ready("server-1", 0, second.fence), Commit) == []
    (commit,) = written(desk.ready("server-0", 0, second.fence), Commit)
    assert commit.fences == (second.fence,)


def test_rule_a_server_waits_for_the_choice_where_attempts_differ() -> None:
    server = ServerKit(whole=True)
    out = server.push(0, 0, 5)
    assert [(r.slot, r.fence) for r in sent(out, Receipt)] == [(0, fence(5))]
    server.push(0, 0, 6)
    assert server.slots_added(0) == []
    server.tell(Choose(1, 0, 1, 0, 0, fence(6)))
    assert server.slots_added(0) == ["6"]


# ---------------------------------------------------------------- seals


def test_rule_pushes_count_only_once_they_are_sealed() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    assert sent(server.push(0, 0, 5, seal=False), Ready) == []
    assert server.slots_added(0) == []
    out = server.push(0, 0, 5, revs={}, sealed={b.index: 0 for b in BLOCKS})
    assert len(sent(out, Ready)) == 1
    assert server.slots_added(0) == ["5"]


def test_rule_a_seal_waits_for_the_push_of_every_block_that_it_names() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    out = server.push(0, 0, 5, revs={0: 0}, sealed={0: 0, 1: 0})
    assert sent(out, Ready) == []
    assert len(sent(server.push(0, 0, 5, revs={1: 0}, seal=False), Ready)) == 1


def test_rule_the_sealed_push_of_a_block_counts_and_not_an_earlier_one() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    server.push(0, 0, 5, seal=False, content="early")
    out = server.push(0, 0, 5, revs={0: 1}, sealed={0: 1, 1: 1}, content="late")
    assert sent(out, Ready) == [], "block 1 was pushed again as well, and that push is not here yet"
    out = server.push(0, 0, 5, seal=False, content="early")
    assert sent(out, Ready) == [], "an old push that arrives late"
    server.push(0, 0, 5, revs={1: 1}, seal=False, content="late")
    assert server.store.added[-1][2] == {0: "late:0:1", 1: "late:1:1"}


# ---------------------------------------------------------------- the window


def test_rule_a_gradient_on_too_old_a_state_is_refused() -> None:
    server = ServerKit(segment(slots=1, data_len=10, window=1, end_step=5))
    for step in range(3):
        server.push(step, 0, 5 + step)
        server.commit(step + 1, step, 5 + step)
    assert sent(server.push(4, 0, 20, base=2), Refused)[0].rule == "stale", "version 2 lacks steps 2 and 3"
    assert sent(server.push(3, 0, 21, base=1), Refused)[0].rule == "stale"
    assert server.core.steps == {}
    assert sent(server.push(3, 0, 22, base=2), PushAck)[0].outcome == "held"
    assert sent(server.push(4, 0, 23, base=3), PushAck)[0].outcome == "held"


def test_rule_lock_step_accepts_exactly_the_version_before() -> None:
    server = ServerKit(segment(slots=1, data_len=10))
    assert sent(server.push(1, 0, 4, base=0), Refused)[0].rule == "stale", "step 0 is missing in it"
    server.push(0, 0, 5)
    server.commit(1, 0, 5)
    assert sent(server.push(1, 0, 6, base=0), Refused)[0].rule == "stale"
    assert sent(server.push(1, 0, 7, base=9), Refused)[0].rule == "stale", "a version that nobody knows"
    assert sent(server.push(1, 0, 8, base=1), PushAck)[0].outcome == "held"


def test_rule_slots_are_leased_only_within_the_window() -> None:
    desk = Desk(workers=5, mode="ssp:2", slots=1).start(data_len=40).initialise()
    assert [desk.lease(w).step for w in desk.workers[:4]] == [0, 1, 2, 3]
    assert desk.turn("worker-4") == [], "step 4 may not be computed before step 1 is committed"


def test_rule_a_read_in_lock_step_names_exactly_one_version() -> None:
    server = ServerKit()
    pull = Pull(50, 0, 1, 1)
    assert server.say(pull) == [], "version 1 is not there yet"
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    (reply,) = sent(server.commit(1, 0, 5, 6), PullReply)
    assert (reply.req, reply.version) == (50, 1)
    assert sent(server.say(Pull(51, 0, 1, 0)), Refused)[0].rule == "gone"


# ---------------------------------------------------------------- fences


@pytest.mark.parametrize("mode", ["ssp:3", "asp"])
def test_rule_a_revoked_fence_is_never_committed(mode: str) -> None:
    desk = Desk(mode=mode, slots=1).start().initialise()
    lost = desk.lease("worker-0")
    desk.seal("worker-0", lost)
    desk.core.lost("worker-0", "killed", desk.now)
    assert written(desk.ready("server-0", 0, lost.fence), Commit) == []
    again = desk.lease("worker-1")
    assert again.step == 0
    assert again.fence > lost.fence
    desk.seal("worker-1", again)
    (commit,) = written(desk.ready("server-0", 0, again.fence), Commit)
    assert commit.fences == (again.fence,)


def test_rule_a_revoked_fence_is_never_chosen() -> None:
    desk = Desk(deterministic=False).start().initialise()
    lost = desk.lease("worker-0")
    desk.seal("worker-0", lost)
    desk.core.lost("worker-0", "killed", desk.now)
    assert sent(desk.say("server-0", Receipt(0, 1, 0, lost.slot, lost.fence)), Choose) == []


def test_rule_attempts_are_kept_apart_by_fence() -> None:
    server = ServerKit(segment(slots=1, data_len=10, window=3, end_step=5))
    server.push(0, 0, 5, revs={0: 0}, seal=False, content="a")
    server.push(0, 0, 6, revs={1: 0}, sealed={0: 0, 1: 0}, content="b")
    assert server.store.added[1:] == [], "half of one attempt and half of another make no whole one"
    server.push(0, 0, 6, revs={0: 0}, seal=False, content="b")
    server.push(0, 0, 5, revs={1: 0}, sealed={0: 0, 1: 0}, content="a")
    assert [(key, payloads) for key, _, payloads in server.store.added[1:]] == [
        (SumKey(0, fence(6)), {0: "b:0:0", 1: "b:1:0"}),
        (SumKey(0, fence(5)), {0: "a:0:0", 1: "a:1:0"}),
    ]
    server.commit(1, 0, 5)
    assert server.store.applied[-1][0] == SumKey(0, fence(5))
    assert server.store.dropped == [SumKey(0, fence(6))]


def test_rule_the_report_of_a_void_lease_is_ignored() -> None:
    desk = Desk().start().initialise()
    lost = desk.lease("worker-0")
    desk.core.lost("worker-0", "a pause", desk.now)
    desk.join("worker-0")
    desk.seal("worker-0", lost)
    assert len(desk.core.gate) == 0


# ---------------------------------------------------------------- generations


def test_rule_a_server_refuses_lower_generations() -> None:
    server = ServerKit()
    server.tell(Plan(3, (segment(),)))
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    server.commit(1, 0, 5, 6)
    server.tell(Abort(2, "failed", "an old coordinator"))
    server.tell(Unpin(1, 0, 0))
    assert server.core.applied == 0
    assert server.core.failed is None
    assert server.store.released == []
    assert server.core.refused == {"generation": 3}
    row = Commit(0, 1, 0, (fence(5), fence(6)), HYPER, 1.0, False, 0, 0)
    server.tell(Committed(3, 1, row))
    assert server.core.applied == 1


def test_rule_a_worker_refuses_lower_generations() -> None:
    core = worker_core()
    core.ask(0.0, 0)
    core.handle("coordinator", grant(core, generation=4), (), 0.0)
    core.handle("coordinator", Abort(3, "failed", "an old coordinator"), (), 0.0)
    core.handle("coordinator", Revoke(3, fence(5)), (), 0.0)
    assert core.abort is None
    assert state_of(core) == WorkerState.PULLING
    placement = Placement(9, ("elsewhere",) * len(BLOCKS), {"elsewhere": "there"})
    core.handle("coordinator", Prepared(0, 3, 0, placement), (), 0.0)
    assert set(core.mine) == {"server-0"}
    core.handle("coordinator", Revoke(4, fence(5)), (), 0.0)
    assert state_of(core) == WorkerState.ASKING


def test_rule_a_push_of_a_generation_that_has_not_spoken_yet_waits() -> None:
    server = ServerKit()
    assert sent(server.push(0, 0, 5, fence=fence(5, generation=2)), Refused)[0].rule == "plan"


# ---------------------------------------------------------------- incarnations


def test_rule_reads_and_pushes_of_another_incarnation_are_refused() -> None:
    server = ServerKit()
    placement = Placement(2, ("server-0",) * len(BLOCKS), {"server-0": "here"})
    server.tell(Assign(1, 2, placement, model(), BLOCKS, False, folder="i0000-v0000000000", version=0))
    assert server.store.loaded == [("i0000-v0000000000", 0)]
    assert sent(server.say(Pull(50, 1, 2, 0)), Refused)[0].rule == "incarnation"
    assert sent(server.push(0, 0, 5, incarnation=1, epoch=2), Refused)[0].rule == "incarnation"
    assert sent(server.push(0, 0, 5, incarnation=3, epoch=2), Refused)[0].rule == "plan", "the server comes there later"
    assert server.say(Pull(51, 3, 3, 0)) == [], "and a reader from there waits for it"
    row = Commit(1, 1, 0, (fence(5), fence(6)), HYPER, 1.0, False, 0, 0)
    server.tell(Committed(1, 1, row))
    assert server.core.applied == 0


def test_rule_a_worker_ignores_reads_of_another_incarnation() -> None:
    core = worker_core()
    core.ask(0.0, 0)
    (pull,) = sent(core.handle("coordinator", grant(core), (), 0.0), Pull)
    assert core.handle("server-0", PullReply(pull.req, 1, 0, 0, ()), (), 0.0) == []
    assert state_of(core) == WorkerState.PULLING
    core.handle("server-0", PullReply(pull.req, 0, 0, 0, ()), (), 0.0)
    assert state_of(core) == WorkerState.COMPUTING


def test_rule_the_coordinator_ignores_reports_of_another_incarnation() -> None:
    desk = Desk(slots=1).start().initialise()
    grant_ = desk.lease("worker-0")
    desk.seal("worker-0", grant_, incarnation=1)
    assert written(desk.ready("server-0", 0, grant_.fence), Commit) == []
    assert written(desk.say("server-0", Ready(1, 1, 0, (grant_.fence,), 0, 0, ())), Commit) == []


# ---------------------------------------------------------------- a worker, for the tests above


def worker_core() -> WorkerCore:
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here"))
    core.place(Prepared(1, 1, 0, Placement(1, ("server-0",) * len(BLOCKS), {"server-0": "there"})))
    return core


def grant(core: WorkerCore, *, generation: int = 1, step: int = 0, counter: int = 5) -> Grant:
    return Grant(turn_of(core).req, generation, 0, 1, step, 0, 2, fence(counter), segment(), False)
