"""Rule 2, attempts: the first arrival per block counts where attempts are interchangeable.

Otherwise a slot counts only as one attempt, the same on all servers: the first fence whose worker reports every block
acknowledged.

Upheld by:
- `core.server.attempts.Attempts.push`: one attempt of a slot is added once
- `core.coordinator.gate.Gate.choose`: an attempt is chosen when every server has it
- `core.coordinator.tables.leases.LeaseBook.revoke`: the fence of a lost worker is void
- `core.worker.sealed_reports.SealedReports.take_back`: an attempt that was given back is not reported
"""

from __future__ import annotations

import pytest
from tests.kit.core import (
    HYPER,
    CoordinatorKit,
    ServerKit,
    fence,
    segment,
    sent,
    turn_of,
    written,
)
from tests.kit.restarted_job import server_back, worker_back

from paceline.core.effects import (
    ChoiceFact,
    Effect,
)
from paceline.core.server.block_store import SumKey
from paceline.core.worker.dispatch import WorkerCore
from paceline.messages import (
    Bye,
    Choose,
    GiveBack,
    Grant,
    JobArgs,
    Ok,
    Prepared,
    Pull,
    PullReply,
    PushAck,
    Ready,
    Receipt,
    Refused,
    Register,
    Seal,
    Welcome,
)
from paceline.types import Commit, Placement


def test_a_repeated_push_is_added_once() -> None:
    for one_attempt in (False, True):
        server = ServerKit(segment(slots=1, data_len=10), one_attempt=one_attempt)
        assert sent(server.push(0, 0, 5), PushAck)[0].outcome == "held"
        assert sent(server.push(0, 0, 5), PushAck)[0].outcome == "duplicate"
        assert server.slots_added(0) == ["5"]


def test_a_second_attempt_of_an_interchangeable_slot_is_not_added() -> None:
    server = ServerKit()
    server.push(0, 0, 5)
    assert sent(server.push(0, 0, 6), PushAck)[0].outcome == "duplicate"
    ready = sent(server.push(0, 1, 7), Ready)
    assert server.slots_added(0) == ["5", "7"]
    assert ready[0].fences == (fence(5), fence(7))


def test_only_a_whole_attempt_counts_where_attempts_differ() -> None:
    job = CoordinatorKit(servers=2, deterministic=False).start().initialise()
    lost = job.lease("worker-0")
    job.seal("worker-0", lost)
    job.say("server-0", Receipt(0, 1, 0, lost.slot, lost.fence))
    job.core.lost("worker-0", "killed", job.now)
    again = job.lease("worker-1")
    assert again.slot == lost.slot
    job.seal("worker-1", again)
    assert sent(job.say("server-1", Receipt(0, 1, 0, again.slot, again.fence)), Choose) == [], (
        "each server has an attempt, but they are different attempts"
    )
    chosen = sent(job.say("server-0", Receipt(0, 1, 0, again.slot, again.fence)), Choose)
    assert [c.fence for c in chosen] == [again.fence] * 2


def test_with_a_window_servers_must_be_ready_with_the_same_attempt() -> None:
    job = CoordinatorKit(servers=2, mode="ssp:3", slots=1).start().initialise()
    first = job.lease("worker-0")
    job.seal("worker-0", first)
    job.ready("server-0", 0, first.fence)
    job.core.lost("worker-0", "killed", job.now)
    second = job.lease("worker-1")
    assert second.step == 0
    job.seal("worker-1", second)
    assert written(job.ready("server-1", 0, second.fence), Commit) == []
    (commit,) = written(job.ready("server-0", 0, second.fence), Commit)
    assert commit.fences == (second.fence,)


def test_a_server_waits_for_the_choice_where_attempts_differ() -> None:
    server = ServerKit(one_attempt=True)
    out = server.push(0, 0, 5)
    assert [(r.slot, r.fence) for r in sent(out, Receipt)] == [(0, fence(5))]
    server.push(0, 0, 6)
    assert server.slots_added(0) == []
    server.tell(Choose(1, 0, 1, 0, 0, fence(6)))
    assert server.slots_added(0) == ["6"]


@pytest.mark.parametrize("mode", ["ssp:3", "asp"])
def test_a_revoked_fence_is_never_committed(mode: str) -> None:
    job = CoordinatorKit(mode=mode, slots=1).start().initialise()
    lost = job.lease("worker-0")
    job.seal("worker-0", lost)
    job.core.lost("worker-0", "killed", job.now)
    assert written(job.ready("server-0", 0, lost.fence), Commit) == []
    again = job.lease("worker-1")
    assert again.step == 0
    assert again.fence > lost.fence
    job.seal("worker-1", again)
    (commit,) = written(job.ready("server-0", 0, again.fence), Commit)
    assert commit.fences == (again.fence,)


def test_a_revoked_fence_is_never_chosen() -> None:
    job = CoordinatorKit(deterministic=False).start().initialise()
    lost = job.lease("worker-0")
    job.seal("worker-0", lost)
    job.core.lost("worker-0", "killed", job.now)
    assert sent(job.say("server-0", Receipt(0, 1, 0, lost.slot, lost.fence)), Choose) == []


def test_attempts_are_kept_apart_by_fence() -> None:
    server = ServerKit(segment(slots=1, data_len=10, window=3, end_step=5))
    server.push(0, 0, 5, revs={0: 0}, seal=False, content="a")
    server.push(0, 0, 6, revs={1: 0}, sealed={0: 0, 1: 0}, content="b")
    assert server.store.added[1:] == [], "halves of two attempts are not one attempt"
    server.push(0, 0, 6, revs={0: 0}, seal=False, content="b")
    server.push(0, 0, 5, revs={1: 0}, sealed={0: 0, 1: 0}, content="a")
    assert [(key, payloads) for key, _, payloads in server.store.added[1:]] == [
        (SumKey(0, fence(6)), {0: "b:0:0", 1: "b:1:0"}),
        (SumKey(0, fence(5)), {0: "a:0:0", 1: "a:1:0"}),
    ]
    server.commit(1, 0, 5)
    assert server.store.applied[-1][0] == SumKey(0, fence(5))
    assert server.store.dropped == [SumKey(0, fence(6))]


def test_a_report_for_a_void_lease_is_ignored() -> None:
    job = CoordinatorKit().start().initialise()
    lost = job.lease("worker-0")
    job.core.lost("worker-0", "silent", job.now)
    job.join("worker-0")
    job.seal("worker-0", lost)
    assert len(job.core.tables.gate) == 0


def test_the_sealed_slot_of_a_worker_that_left_still_counts() -> None:
    job = CoordinatorKit().start().initialise()
    grants = [job.lease(w) for w in job.workers]
    job.seal("worker-0", grants[0])
    job.say("worker-0", Bye(job.req()))
    job.core.tick(job.now + 1.0)
    assert job.lease("worker-1").slot == grants[0].slot
    assert job.core.totals.lost_workers == 0


def test_a_chosen_attempt_outlives_its_worker() -> None:
    job = CoordinatorKit(deterministic=False).start().initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    job.say("server-0", Receipt(0, 1, 0, grant.slot, grant.fence))
    job.core.lost("worker-0", "killed", job.now)
    other = job.lease("worker-1")
    assert other.slot != grant.slot, "slot 0 need not be computed again"
    job.seal("worker-1", other)
    job.say("server-0", Receipt(0, 1, 0, other.slot, other.fence))
    (commit,) = written(job.ready("server-0", 0, grant.fence, other.fence), Commit)
    assert commit.fences == (grant.fence, other.fence)


def test_a_choice_of_attempts_is_durable_before_it_is_sent() -> None:
    job = CoordinatorKit(servers=2, deterministic=False, rewinds=True).start(data_len=80).initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    effects: list[Effect] = []
    for server in job.servers:
        effects += job.say(server, Receipt(0, 1, 0, grant.slot, grant.fence))
    kinds = [type(e).__name__ for e in effects]
    assert kinds.index("Write") < kinds.index("Send")
    assert len(written(effects, ChoiceFact)) == 1
    assert [c.fence for c in sent(effects, Choose)] == [grant.fence] * 2
    job.restart()
    effects = [e for server in job.servers for e in server_back(job, server)]
    assert {c.fence for c in sent(effects, Choose)} == {grant.fence}, "the choice is announced again"
    job.now += 1.0
    worker_back(job, "worker-1")
    assert job.lease("worker-1").slot == 1, "the chosen slot is not computed again"


def test_an_attempt_that_was_given_back_is_not_reported_as_sealed() -> None:
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "bsp", 1, 1)))
    core.place(Prepared(0, 1, 0, Placement(1, ("server-0",), {"server-0": "at"})))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20), True)
    (pull,) = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    core.handle("server-0", PullReply(pull.req, 0, 4, 4, ()), (), 0.0)
    (push,) = core.push(0.0, {"server-0": ((), (), None)})
    core.handle("server-0", Refused(push.message.req, "stale", ""), (), 0.0)  # type: ignore[attr-defined]
    core.push(0.0, {"server-0": ((), (), Seal(1.0, (), ()))})
    core.sealed(0.0, core.turn.report(1.0, HYPER, {}, 0.1))
    (intro,) = sent(core.reconnected(0.0), Register)
    assert intro.leases == ()


def test_a_slot_given_back_during_a_registration_is_given_back_again_after_it() -> None:
    """The new coordinator answers the first GiveBack before it knows the lease; then a seal is reported."""
    core = WorkerCore(Register(1, "worker", "worker-0", 1, "here", None, JobArgs(7, "bsp", 1, 1)))
    core.place(Prepared(0, 1, 0, Placement(1, ("server-0",), {"server-0": "at"})))
    core.ask(0.0, 0)
    grant = Grant(turn_of(core).req, 1, 0, 1, 4, 0, 1, fence(1), segment(slots=1, end_step=20), True)
    (pull,) = sent(core.handle("coordinator", grant, (), 0.0), Pull)
    core.handle("server-0", PullReply(pull.req, 0, 4, 4, ()), (), 0.0)
    (push,) = core.push(0.0, {"server-0": ((), (), Seal(1.0, (), ()))})
    core.sealed(0.0, core.turn.report(1.0, HYPER, {}, 0.1))
    (intro,) = sent(core.reconnected(0.0), Register)
    assert [held.fence for held in intro.leases] == [fence(1)]
    refused = Refused(push.message.req, "stale", "")  # type: ignore[attr-defined]
    (first,) = sent(core.handle("server-0", refused, (), 0.0), GiveBack)
    core.handle("coordinator", Ok(first.req), (), 0.0)
    (again,) = sent(core.handle("coordinator", Welcome(intro.req, 2, 0, None, 0.5, 3.0), (), 0.0), GiveBack)
    assert again.fence == fence(1)
    core.handle("coordinator", Ok(first.req), (), 0.0)  # the reply to the GiveBack before the registration
    assert [g.fence for g in sent(core.tick(5.0), GiveBack)] == [fence(1)]
    core.handle("coordinator", Ok(again.req), (), 5.0)
    assert sent(core.tick(10.0), GiveBack) == []
