"""A worker's protocol, message by message."""

from __future__ import annotations

import pytest
from tests.kit.core import BLOCKS, fence, frame, sent, state_of, turn_of
from tests.kit.worker_core import ASP, WorkerKit

from paceline.core.effects import Send
from paceline.core.worker.dispatch import Fill
from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    Abort,
    EvalGrant,
    EvalOver,
    GiveBack,
    Ok,
    PlacementRequest,
    Pull,
    PullReply,
    PushAck,
    Refused,
    Register,
    Revoke,
    Turn,
    Welcome,
)
from paceline.types import INIT_STEP


def test_a_turn_asks_reads_pushes_and_seals_in_this_order() -> None:
    kit = WorkerKit()
    core = kit.core
    (ask,) = sent(core.ask(0.0, 0), Turn)
    assert (state_of(core), ask.phase, ask.sealed, ask.declared) == (WorkerState.ASKING, 0, None, 0)
    out = kit.grant(0)
    assert [(p.exact, p.have) for p in sent(out, Pull)] == [(0, -1), (0, -1)]
    first, second = (s for s in out if isinstance(s, Send))
    fills = kit.hear(PullReply(getattr(first.message, "req"), 0, 0, 0, (frame(0),)), first.to, ("value",))  # noqa: B009
    assert fills == [Fill(first.to, (frame(0),), ("value",))]
    assert state_of(core) == WorkerState.PULLING
    kit.hear(PullReply(getattr(second.message, "req"), 0, 0, 0, ()), second.to)  # noqa: B009
    assert state_of(core) == WorkerState.COMPUTING
    assert core.model.held == {"s0": 0, "s1": 0}
    pushes = kit.push()
    assert [(p.step, p.slot, p.fence, p.base, p.seal is not None) for p in pushes] == [(0, 0, fence(5), 0, True)] * 2
    turn = kit.seal()
    assert turn.sealed is not None
    assert (turn.sealed.step, turn.sealed.slot, turn.sealed.fence) == (0, 0, fence(5))
    assert set(core.transfers.unacked) == {p.req for p in pushes}
    for push in pushes:
        kit.hear(PushAck(push.req, "held"), "s0")
    assert not core.transfers.unacked


def test_every_turn_carries_the_number_of_declared_validators() -> None:
    kit = WorkerKit()
    kit.core.declare(2)
    assert [turn.declared for turn in sent(kit.core.ask(0.0, 0), Turn)] == [2]


def test_the_first_worker_makes_version_0_and_reads_nothing() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    assert kit.grant(INIT_STEP) == []
    assert state_of(kit.core) == WorkerState.INITIALISING
    assert [p.base for p in kit.push()] == [-1, -1]
    kit.seal()
    assert kit.core.reports.last_step == -2


def test_asynchronous_workers_read_their_own_writes() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    kit.seal()
    assert {p.after for p in sent(kit.grant(9, of=ASP, slots=1), Pull)} == {3}


def test_a_version_that_the_model_has_is_not_read_again() -> None:
    kit = WorkerKit()
    kit.computing(0)
    kit.core.ask(0.0, 0)
    assert kit.grant(0, 6) == []
    assert state_of(kit.core) == WorkerState.COMPUTING
    kit.core.ask(0.0, 0)
    assert {(p.exact, p.have) for p in sent(kit.grant(1, 7), Pull)} == {(1, 0)}


def test_an_older_version_is_read_in_full() -> None:
    kit = WorkerKit()
    kit.computing(4)
    (turn,) = sent(kit.core.ask(0.0, 0), Turn)
    out = kit.hear(EvalGrant(turn.req, 1, 0, 1, 1, 0, 0, fence(9), 2, False))
    assert {(p.exact, p.have) for p in sent(out, Pull)} == {(2, -1)}


def test_the_last_version_of_a_phase_is_read_unless_the_servers_have_released_it() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    out = kit.over(6)
    assert state_of(kit.core) == WorkerState.PULLING
    kit.fill(out, 6)
    assert state_of(kit.core) == WorkerState.OVER
    assert kit.core.turn.lead
    kit.core.ask(0.0, 0)
    assert kit.over(-1) == []
    assert state_of(kit.core) == WorkerState.OVER


def test_the_result_of_an_evaluation_needs_no_read() -> None:
    kit = WorkerKit()
    (turn,) = sent(kit.core.ask(0.0, 0, evaluation=2), Turn)
    assert turn.evaluation == 2
    kit.hear(EvalOver(turn.req, 1, 2, 5, {"acc": 1.0}))
    assert state_of(kit.core) == WorkerState.OVER


def test_answers_to_other_turns_are_ignored() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    assert kit.grant(0, req=99) == []
    assert state_of(kit.core) == WorkerState.ASKING
    kit.fill(kit.grant(0), 0)
    assert kit.grant(1, 9) == []
    assert state_of(kit.core) == WorkerState.COMPUTING


def test_a_revoked_lease_is_dropped_while_it_waits_and_kept_while_it_computes() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    kit.grant(4, 5)
    assert kit.hear(Revoke(1, fence(4))) == []
    assert len(sent(kit.hear(Revoke(1, fence(5))), Turn)) == 1
    assert state_of(kit.core) == WorkerState.ASKING
    kit.fill(kit.grant(0, 6), 0)
    assert kit.hear(Revoke(1, fence(6))) == []
    assert state_of(kit.core) == WorkerState.COMPUTING


def test_a_pull_whose_parts_arrive_is_not_repeated() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    out = kit.grant(0)
    pulls = {send.to: send.message for send in out if isinstance(send, Send) and isinstance(send.message, Pull)}
    kit.now = 1.9
    kit.hear(PullReply(pulls["s0"].req, 0, 0, 0, (frame(0),), 0, 2), "s0", ("value",))
    assert [send.to for send in kit.core.tick(2.0) if isinstance(send.message, Pull)] == ["s1"]
    assert [send.to for send in kit.core.tick(3.9) if isinstance(send.message, Pull)] == ["s0"], (
        "the second part is missing, so the pull is repeated"
    )


def test_a_refused_push_gives_the_slot_back_once() -> None:
    kit = WorkerKit()
    kit.computing(0)
    first, second = kit.push()
    (give,) = sent(kit.hear(Refused(first.req, "stale", "too old"), "s0"), GiveBack)
    assert give.fence == fence(5)
    assert kit.hear(Refused(second.req, "stale", "too old"), "s1") == []
    assert not kit.core.transfers.unacked
    assert [g.req for g in sent(kit.core.tick(5.0), GiveBack)] == [give.req]
    kit.hear(Ok(give.req))
    assert sent(kit.core.tick(10.0), GiveBack) == []


def test_a_worker_does_not_wait_for_a_slot_given_back_before_its_seal() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    push, _ = kit.push(seal=False)
    kit.hear(Refused(push.req, "stale", "too old"), "s0")
    kit.seal()
    assert {p.after for p in sent(kit.grant(3, 7, of=ASP, slots=1), Pull)} == {-2}


@pytest.mark.parametrize("rule", ["gone", "incarnation"])
def test_a_refused_pull_gives_the_lease_back(rule: str) -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    pull, other = sent(kit.grant(4), Pull)
    (turn,) = sent(kit.hear(Refused(pull.req, rule, ""), "s0"), Turn)
    assert turn.abandoned == fence(5)
    assert kit.hear(Refused(other.req, rule, ""), "s1") == []


def test_a_pull_refused_for_its_epoch_asks_for_the_placement() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    pull, _ = sent(kit.grant(4), Pull)
    out = kit.hear(Refused(pull.req, "epoch", ""), "s0")
    assert [m.epoch for m in sent(out, PlacementRequest)] == [1]
    kit.hear(kit.prepared(2, "s1", "s1"))
    assert kit.core.model.by_server == {"s1": (0, 1)}
    kit.hear(kit.prepared(1, "s0", "s1"))
    assert kit.core.model.by_server == {"s1": (0, 1)}, "an older placement that arrives late is ignored"


def test_the_report_of_a_seal_survives_a_push_refused_for_its_epoch() -> None:
    kit = WorkerKit()
    kit.computing(0)
    push, _ = kit.push()
    turn = kit.seal()
    out = kit.hear(Refused(push.req, "epoch", ""), "s0")
    assert len(sent(out, GiveBack)) == 1
    assert turn_of(kit.core) == turn


def test_a_repeated_registration_tells_how_far_the_worker_is_now() -> None:
    """Another coordinator may be the first to receive it."""
    kit = WorkerKit()
    kit.computing(0)
    (first,) = sent(kit.core.reconnected(1.0), Register)
    assert [lease.step for lease in first.leases] == [0]
    kit.core.declare(2)
    (again,) = sent(kit.core.tick(3.0), Register)
    assert (again.req, again.declared, again.leases) == (first.req, 2, first.leases)


def test_an_evicted_worker_keeps_its_payloads_until_they_are_read() -> None:
    kit = WorkerKit()
    kit.computing(0, of=ASP, slots=1)
    pushes = kit.push()
    turn = kit.seal()
    kit.hear(Refused(turn.req, "unknown", ""))
    assert set(kit.core.transfers.unacked) == {p.req for p in pushes}
    assert kit.core.reports.last_step == -2


def test_answers_to_requests_that_the_core_did_not_send_change_nothing() -> None:
    kit = WorkerKit()
    assert kit.hear(Refused(77, "unknown", "")) == []
    kit.computing(0)
    assert kit.hear(Welcome(78, 1, 0, None, 0.5, 3.0)) == []
    assert state_of(kit.core) == WorkerState.COMPUTING


def test_the_end_of_the_job_is_final() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    kit.hear(Abort(1, "failed", "why"))
    assert state_of(kit.core) == WorkerState.ABORTED
    assert kit.core.turn.abort is not None


def test_the_table_of_blocks_follows_the_placement() -> None:
    kit = WorkerKit()
    assert kit.core.model.by_server == {"s0": (0,), "s1": (1,)}
    assert len(BLOCKS) == 2
