"""Rule 10, transport: delivery is known only from a reply, and every request ends in a reply or a named error.

Requests are repeated until they are answered and executed once. An identity is unique per process start. That a full
queue never blocks and drops its peer by name is part of the contract of a port (tests/contract).

Upheld by:
- `core.coordinator.requests`: a repeated request gets the same reply
- `core.worker.requests.CoordinatorRequests.repeat` and `core.worker.server_requests.ServerRequests.repeat`
"""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent, state_of, turn_of
from tests.kit.worker_core import WorkerKit

from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    BeginPhase,
    Claim,
    ClaimDone,
    Claimed,
    Exited,
    Grant,
    Ok,
    PhaseBegun,
    Prepare,
    Prepared,
    Push,
    Refused,
    Register,
    Turn,
    Welcome,
)
from paceline.types import PhaseSpec


def test_a_repeated_request_gets_the_same_reply_and_is_executed_once() -> None:
    job = CoordinatorKit().start().initialise()
    turn = Turn(job.req(), 0, 0)
    first = job.say("worker-0", turn)
    assert job.say("worker-0", turn) == first
    assert len(sent(first, Grant)) == 1
    begin = BeginPhase(job.req(), PhaseSpec(0, 12, 2, None, 1, True, False))
    (answer,) = sent(job.say("worker-0", begin), PhaseBegun)
    assert sent(job.say("worker-0", begin), PhaseBegun) == [answer]


def test_an_outdated_request_gets_no_reply() -> None:
    job = CoordinatorKit().start().initialise()
    old, new = Turn(job.req(), 0, 0), Turn(job.req(), 0, 0)
    job.say("worker-0", new)
    assert job.say("worker-0", old) == []


def test_a_deferred_reply_is_repeated_too() -> None:
    """A message of another peer may trigger the reply: if the reply is lost, it must be repeated."""
    job = CoordinatorKit(workers=3).start().initialise()
    grants = [job.lease(w) for w in ("worker-0", "worker-1")]
    turn = Turn(job.req(), 0, 0)
    grants += [g for w in ("worker-0", "worker-1") for g in sent(job.seal(w, grants.pop(0)), Grant)]
    assert job.say("worker-2", turn) == []
    effects = job.say("engine", Exited(1, "worker-0", 1, -9))
    (grant,) = sent(effects, Grant, "worker-2")
    assert sent(job.say("worker-2", turn), Grant) == [grant]
    late = CoordinatorKit(workers=1, servers=1)
    late.say("worker-0", Register(1, "worker", "worker-0", 1, "here", None, late.job))
    prepare = Prepare(2, late.model)
    assert sent(late.say("worker-0", prepare), Prepared) == []
    assert len(sent(late.say("server-0", Register(1, "server", "server-0", 1, "here", "at")), Prepared)) == 1
    assert len(sent(late.say("worker-0", prepare), Prepared)) == 1


def test_a_request_parked_before_an_eviction_is_answered_when_repeated() -> None:
    job = CoordinatorKit().start()
    claim = Claim(job.req(), "save")
    job.say("worker-1", claim)
    waiting = Claim(job.req(), "save")
    assert job.say("worker-0", waiting) == []
    job.core.lost("worker-0", "silent", job.now)
    job.say("worker-0", Register(job.req(), "worker", "worker-0", 1, "here", None, job.job))
    assert job.say("worker-0", waiting) == [], "the worker is in the queue again"
    effects = job.say("worker-1", ClaimDone(job.req(), "save"))
    assert [c.mine for c in sent(effects, Claimed, "worker-0")] == [False]


def test_a_lease_whose_grant_was_lost_goes_to_another_worker() -> None:
    job = CoordinatorKit().start().initialise()
    lost = job.lease("worker-0")
    job.turn("worker-0")
    assert lost.fence not in job.core.tables.leases.live
    assert job.core.tables.leases.grant("x", 0, True, 9) is not None


def test_an_exit_counts_only_for_the_start_that_it_names() -> None:
    job = CoordinatorKit().start().initialise()
    job.lease("worker-0")
    assert sent(job.say("engine", Exited(1, "worker-0", 77, -9)), Ok)
    assert "worker-0" in job.core.tables.members.members
    job.say("engine", Exited(2, "worker-0", 1, -9))
    assert "worker-0" not in job.core.tables.members.members


def test_a_worker_repeats_every_request_without_a_reply() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    assert kit.core.tick(1.9) == []
    assert len(sent(kit.core.tick(2.0), Turn)) == 1
    assert kit.core.tick(2.1) == []
    out = kit.grant(1)
    assert sorted(type(s.message).__name__ for s in kit.core.tick(4.1)) == ["Pull", "Pull", "Turn"]
    kit.fill(out, 1)
    assert kit.core.tick(9.0) == [], "a worker that computes waits for no reply"
    kit.push()
    assert len(sent(kit.core.tick(20.0), Push)) == 2


def test_a_turn_is_repeated_while_its_lease_can_only_wait() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    kit.grant(4)
    again = sent(kit.core.tick(3.0), Turn)
    assert [t.req for t in again] == [turn_of(kit.core).req]


def test_an_evicted_worker_registers_and_asks_again() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0, evaluation=3)
    kit.grant(4)
    (turn,) = sent(kit.core.tick(3.0), Turn)
    (register,) = sent(kit.hear(Refused(turn.req, "unknown", "")), Register)
    assert kit.hear(Refused(turn.req, "unknown", "")) == [], "the second refusal changes nothing"
    assert state_of(kit.core) == WorkerState.ASKING
    assert [r.req for r in sent(kit.core.tick(6.0), Register)] == [register.req]
    assert kit.hear(Welcome(1, 1, 0, None, 0.5, 3.0)) == [], "the reply to the first registration is ignored"
    (again,) = sent(kit.hear(Welcome(register.req, 1, 0, None, 0.5, 3.0)), Turn)
    assert (again.phase, again.evaluation, again.abandoned) == (0, 3, None)
