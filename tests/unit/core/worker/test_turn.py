"""A worker's protocol, message by message."""

from __future__ import annotations

import pytest
from tests.kit.core import BLOCKS, HYPER, fence, frame, segment, sent, state_of, turn_of

from paceline.core.effects import Send
from paceline.core.message_parts import PUSH_NBYTES
from paceline.core.worker.turn import Connect, Fill, WorkerCore, WorkerState
from paceline.messages import (
    Abort,
    BlockFrame,
    EvalGrant,
    EvalOver,
    GiveBack,
    Grant,
    Message,
    Ok,
    PhaseOver,
    PlacementRequest,
    Prepared,
    Pull,
    PullReply,
    Push,
    PushAck,
    Refused,
    Register,
    Revoke,
    Seal,
    Turn,
    Welcome,
)
from paceline.types import INIT_STEP, UNLIMITED, Placement, Segment

SSP = segment(slots=1, window=3)
ASP = segment(slots=1, window=UNLIMITED)


class WorkerKit:
    """A worker of a job whose two blocks lie on two servers."""

    def __init__(self, part_nbytes: int = PUSH_NBYTES) -> None:
        self.core = WorkerCore(Register(1, "worker", "worker-0", 1, "here"), resend_s=2.0, part_nbytes=part_nbytes)
        self.core.place(self.prepared(1, "s0", "s1"))
        self.now = 0.0

    def prepared(self, epoch: int, *owners: str) -> Prepared:
        return Prepared(0, 1, 0, Placement(epoch, owners, dict.fromkeys(owners, "there")))

    def hear(
        self, message: Message, sender: str = "coordinator", payload: tuple[object, ...] = ()
    ) -> list[Send | Fill | Connect]:
        return self.core.handle(sender, message, payload, self.now)

    def grant(
        self, step: int, counter: int = 5, *, of: Segment | None = None, slots: int = 2, req: int | None = None
    ) -> list[Send | Fill | Connect]:
        """The coordinator answers the turn under way."""
        seg = None if step == INIT_STEP else of or segment()
        return self.hear(Grant(req or turn_of(self.core).req, 1, 0, 1, step, 0, slots, fence(counter), seg, False))

    def over(self, version: int, *, finished: bool = False) -> list[Send | Fill | Connect]:
        return self.hear(PhaseOver(turn_of(self.core).req, 1, 0, 1, 0, version, version, finished, True, {}))

    def fill(self, out: list[Send | Fill | Connect], version: int) -> None:
        """The servers answer the reads in `out`."""
        for send in out:
            if isinstance(send, Send) and isinstance(send.message, Pull):
                self.hear(PullReply(send.message.req, 0, version, version, ()), sender=send.to)

    def computing(self, step: int = 0, counter: int = 5, *, of: Segment | None = None, slots: int = 2) -> None:
        """The worker has a slot in hand and has read what it needs."""
        self.core.ask(self.now, 0)
        self.fill(self.grant(step, counter, of=of, slots=slots), step)
        assert state_of(self.core) == WorkerState.COMPUTING

    def push(self, *, seal: bool = True) -> list[Push]:
        parts = {
            server: ((frame(blocks[0]),), ("gradient",), Seal(1.0, (), ((blocks[0], 0),)) if seal else None)
            for server, blocks in self.core.mine.items()
        }
        return sent(self.core.push(self.now, parts), Push)

    def seal(self) -> Turn:
        (turn,) = sent(self.core.sealed(self.now, 1.0, HYPER, {}, 0.1), Turn)
        return turn


def test_a_turn_from_asking_to_sealing() -> None:
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
    assert core.held == {"s0": 0, "s1": 0}
    pushes = kit.push()
    assert [(p.step, p.slot, p.fence, p.base, p.seal is not None) for p in pushes] == [(0, 0, fence(5), 0, True)] * 2
    turn = kit.seal()
    assert turn.sealed is not None
    assert (turn.sealed.step, turn.sealed.slot, turn.sealed.fence) == (0, 0, fence(5))
    assert set(core.unacked) == {p.req for p in pushes}
    for push in pushes:
        kit.hear(PushAck(push.req, "held"), "s0")
    assert not core.unacked


def test_every_turn_tells_how_many_validators_are_declared() -> None:
    kit = WorkerKit()
    kit.core.declared = 2
    assert [turn.declared for turn in sent(kit.core.ask(0.0, 0), Turn)] == [2]


def test_the_first_worker_makes_version_0_and_reads_nothing() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    assert kit.grant(INIT_STEP) == []
    assert state_of(kit.core) == WorkerState.INITIALISING
    assert [p.base for p in kit.push()] == [-1, -1]
    kit.seal()
    assert kit.core.last_step == -2


def test_rule_lock_step_reads_exactly_t_and_a_window_reads_new_enough() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    assert {(p.exact, p.watermark) for p in sent(kit.grant(4), Pull)} == {(4, 0)}
    kit.core.ask(0.0, 0)
    assert {(p.exact, p.watermark, p.after) for p in sent(kit.grant(7, of=SSP), Pull)} == {(-1, 4, -2)}
    kit.core.ask(0.0, 0)
    assert {(p.exact, p.watermark) for p in sent(kit.grant(7, of=ASP), Pull)} == {(-1, 0)}


def test_asynchronous_workers_read_their_own_writes() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    kit.seal()
    assert {p.after for p in sent(kit.grant(9, of=ASP, slots=1), Pull)} == {3}


def test_rule_a_worker_does_not_wait_for_a_step_that_it_sealed_for_an_earlier_coordinator() -> None:
    """The new one may not count it, and have leased the step to somebody who waits for another."""
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    kit.core.generation = 2
    kit.push()
    kit.seal()
    out = kit.hear(Grant(turn_of(kit.core).req, 2, 0, 1, 4, 0, 1, fence(9), ASP, False))
    assert {pull.after for pull in sent(out, Pull)} == {-2}


def test_rule_a_worker_never_waits_for_its_own_step_when_others_have_slots_of_it() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=2)
    kit.seal()
    assert {p.after for p in sent(kit.grant(3, of=ASP), Pull)} == {-2}


def test_what_the_model_has_already_is_not_read_again() -> None:
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


def test_the_end_of_a_phase_is_read_and_a_long_gone_one_is_not() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    out = kit.over(6)
    assert state_of(kit.core) == WorkerState.PULLING
    kit.fill(out, 6)
    assert state_of(kit.core) == WorkerState.OVER
    assert kit.core.lead
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


def test_rule_a_worker_that_waits_on_a_void_lease_takes_the_next_answer() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    kit.grant(4, 5)
    assert kit.grant(4, 5) == [], "the same answer again"
    assert kit.grant(3, 4) == [], "an older answer that arrives late"
    assert {p.exact for p in sent(kit.grant(3, 6), Pull)} == {3}
    assert {p.exact for p in sent(kit.over(3), Pull)} == {3}
    assert kit.grant(5, 9) == [], "over is over"


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


def test_rule_whatever_nobody_answered_is_said_again() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    assert kit.core.tick(1.9) == []
    assert len(sent(kit.core.tick(2.0), Turn)) == 1
    assert kit.core.tick(2.1) == []
    out = kit.grant(1)
    assert sorted(type(s.message).__name__ for s in kit.core.tick(4.1)) == ["Pull", "Pull", "Turn"]
    kit.fill(out, 1)
    assert kit.core.tick(9.0) == [], "while it computes nothing is awaited"
    kit.push()
    assert len(sent(kit.core.tick(20.0), Push)) == 2


def test_rule_a_turn_is_said_again_while_its_lease_can_only_wait() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    kit.grant(4)
    again = sent(kit.core.tick(3.0), Turn)
    assert [t.req for t in again] == [turn_of(kit.core).req]


def test_rule_a_payload_is_not_released_before_its_push_is_answered() -> None:
    kit = WorkerKit()
    kit.computing(0)
    first, second = kit.push()
    kit.hear(Refused(first.req, "plan", "not yet"), "s0")
    assert set(kit.core.unacked) == {first.req, second.req}
    assert [p.req for p in sent(kit.core.tick(0.05), Push)] == [first.req], "asked again soon"
    kit.hear(PushAck(first.req, "held"), "s0")
    assert set(kit.core.unacked) == {second.req}


def test_rule_a_large_push_goes_in_parts_and_the_last_has_the_seal() -> None:
    kit = WorkerKit(part_nbytes=2 * 256)
    kit.core.place(kit.prepared(1, "s0", "s1", "s0", "s0", "s0", "s0"))
    kit.computing()
    mine = kit.core.mine["s0"]
    assert mine == (0, 2, 3, 4, 5)
    parts = {}
    for server, blocks in kit.core.mine.items():
        seal = Seal(1.0, (), tuple((block, 0) for block in blocks))
        parts[server] = (
            tuple(BlockFrame(b, "float32", 64) for b in blocks),
            tuple(f"gradient {b}" for b in blocks),
            seal,
        )
    sends = kit.core.push(0.0, parts, 0.5)
    pushes = [(send.message, send.payload) for send in sends if isinstance(send.message, Push) and send.to == "s0"]
    assert [[b.block for b in push.blocks] for push, _ in pushes] == [[0, 2], [3, 4], [5]]
    assert [content for _, payload in pushes for content in payload] == [f"gradient {b}" for b in mine]
    assert [push.seal for push, _ in pushes] == [None, None, parts["s0"][2]], "it names the blocks of all parts"
    assert {(push.step, push.slot, push.fence, push.base, push.weight) for push, _ in pushes} == {
        (0, 0, fence(5), 0, 0.5)
    }
    assert len(kit.core.unacked) == 4, "each is answered for itself, and said again until then"
    (empty,) = kit.core.push(0.0, {"s0": ((), (), Seal(0.0, (), ()))}, 0.0)
    assert isinstance(empty.message, Push)
    assert empty.message.seal == Seal(0.0, (), ())


def test_a_read_of_which_parts_arrive_is_not_asked_for_again() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    out = kit.grant(0)
    pulls = {send.to: send.message for send in out if isinstance(send, Send) and isinstance(send.message, Pull)}
    kit.now = 1.9
    kit.hear(PullReply(pulls["s0"].req, 0, 0, 0, (frame(0),), 0, 2), "s0", ("value",))
    assert [send.to for send in kit.core.tick(2.0) if isinstance(send.message, Pull)] == ["s1"]
    assert [send.to for send in kit.core.tick(3.9) if isinstance(send.message, Pull)] == ["s0"], "the rest is missing"


def test_a_refused_push_gives_the_slot_back_once() -> None:
    kit = WorkerKit()
    kit.computing(0)
    first, second = kit.push()
    (give,) = sent(kit.hear(Refused(first.req, "stale", "too old"), "s0"), GiveBack)
    assert give.fence == fence(5)
    assert kit.hear(Refused(second.req, "stale", "too old"), "s1") == []
    assert not kit.core.unacked
    assert [g.req for g in sent(kit.core.tick(5.0), GiveBack)] == [give.req]
    kit.hear(Ok(give.req))
    assert sent(kit.core.tick(10.0), GiveBack) == []


def test_rule_a_slot_that_was_given_back_is_not_waited_for() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    push, _ = kit.push()
    kit.seal()
    kit.grant(9, 6, of=ASP, slots=1)
    out = kit.hear(Refused(push.req, "stale", "too old"), "s0")
    assert len(sent(out, GiveBack)) == 1
    (turn,) = sent(out, Turn)
    assert turn.abandoned == fence(6), "it waits to read a step that nobody has any more"
    assert {p.after for p in sent(kit.grant(3, 7, of=ASP, slots=1), Pull)} == {-2}


def test_a_slot_given_back_before_its_seal_is_not_waited_for_either() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    push, _ = kit.push(seal=False)
    kit.hear(Refused(push.req, "stale", "too old"), "s0")
    kit.seal()
    assert {p.after for p in sent(kit.grant(3, 7, of=ASP, slots=1), Pull)} == {-2}


@pytest.mark.parametrize("rule", ["gone", "incarnation"])
def test_a_refused_read_hands_the_lease_back(rule: str) -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    pull, other = sent(kit.grant(4), Pull)
    (turn,) = sent(kit.hear(Refused(pull.req, rule, ""), "s0"), Turn)
    assert turn.abandoned == fence(5)
    assert kit.hear(Refused(other.req, rule, ""), "s1") == []


def test_a_refused_placement_is_asked_for_again() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    pull, _ = sent(kit.grant(4), Pull)
    out = kit.hear(Refused(pull.req, "epoch", ""), "s0")
    assert [m.epoch for m in sent(out, PlacementRequest)] == [1]
    kit.hear(kit.prepared(2, "s1", "s1"))
    assert kit.core.mine == {"s1": (0, 1)}
    kit.hear(kit.prepared(1, "s0", "s1"))
    assert kit.core.mine == {"s1": (0, 1)}, "an older placement that arrives late"


def test_the_report_of_a_seal_survives_a_refused_placement() -> None:
    kit = WorkerKit()
    kit.computing(0)
    push, _ = kit.push()
    turn = kit.seal()
    out = kit.hear(Refused(push.req, "epoch", ""), "s0")
    assert len(sent(out, GiveBack)) == 1
    assert kit.core.turn == turn


def test_rule_an_evicted_worker_registers_again_and_asks_again() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0, evaluation=3)
    kit.grant(4)
    (turn,) = sent(kit.core.tick(3.0), Turn)
    (register,) = sent(kit.hear(Refused(turn.req, "unknown", "")), Register)
    assert kit.hear(Refused(turn.req, "unknown", "")) == [], "said twice"
    assert state_of(kit.core) == WorkerState.ASKING
    assert [r.req for r in sent(kit.core.tick(6.0), Register)] == [register.req]
    assert kit.hear(Welcome(1, 1, 0, None, 0.5, 3.0)) == [], "the answer to its first registration"
    (again,) = sent(kit.hear(Welcome(register.req, 1, 0, None, 0.5, 3.0)), Turn)
    assert (again.phase, again.evaluation, again.abandoned) == (0, 3, None)


def test_a_registration_that_is_said_again_tells_how_far_the_worker_is_now() -> None:
    """The coordinator that was meant may be gone, and the next one hears this first."""
    kit = WorkerKit()
    kit.computing(0)
    (first,) = sent(kit.core.reconnected(1.0), Register)
    assert [lease.step for lease in first.leases] == [0]
    kit.core.declared = 2
    (again,) = sent(kit.core.tick(3.0), Register)
    assert (again.req, again.declared, again.leases) == (first.req, 2, first.leases)


def test_an_evicted_worker_keeps_its_payloads_until_they_are_read() -> None:
    kit = WorkerKit()
    kit.computing(0, of=ASP, slots=1)
    pushes = kit.push()
    turn = kit.seal()
    kit.hear(Refused(turn.req, "unknown", ""))
    assert set(kit.core.unacked) == {p.req for p in pushes}
    assert kit.core.last_step == -2


def test_a_host_that_registers_by_itself_is_not_disturbed() -> None:
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
    assert kit.core.abort is not None


def test_blocks_lie_where_the_placement_says() -> None:
    kit = WorkerKit()
    assert kit.core.mine == {"s0": (0,), "s1": (1,)}
    assert len(BLOCKS) == 2


def part(req: int, version: int, number: int, parts: int = 2) -> PullReply:
    return PullReply(req, 0, version, version, (frame(0),), number, parts)


def test_rule_a_state_that_comes_in_parts_is_held_when_the_last_has_come() -> None:
    kit = WorkerKit()
    kit.core.ask(kit.now, 0)
    reads = {s.to: s.message.req for s in kit.grant(3) if isinstance(s, Send) and isinstance(s.message, Pull)}
    kit.hear(part(reads["s1"], 3, 0, 1), "s1")
    assert len(kit.hear(part(reads["s0"], 3, 1), "s0", ("x",))) == 1, "filled as it comes"
    assert (kit.core.held["s0"], kit.core.state) == (-1, WorkerState.PULLING)
    kit.hear(part(reads["s0"], 3, 1), "s0", ("x",))
    assert kit.core.state == WorkerState.PULLING, "the same part again is not another one"
    kit.hear(part(reads["s0"], 3, 0), "s0", ("x",))
    assert (kit.core.held["s0"], kit.core.state) == (3, WorkerState.COMPUTING)


def test_rule_parts_of_two_versions_do_not_make_a_state() -> None:
    kit = WorkerKit()
    kit.core.ask(kit.now, 0)
    reads = {s.to: s.message.req for s in kit.grant(3, of=SSP) if isinstance(s, Send) and isinstance(s.message, Pull)}
    kit.hear(part(reads["s1"], 3, 0, 1), "s1")
    kit.hear(part(reads["s0"], 3, 0), "s0", ("x",))
    kit.hear(part(reads["s0"], 4, 1), "s0", ("x",))
    assert kit.core.state == WorkerState.PULLING
    assert kit.hear(part(reads["s0"], 3, 0, 1), "s0", ("x",)) == [], "older than what is there by now"
    kit.hear(part(reads["s0"], 4, 0), "s0", ("x",))
    assert (kit.core.held["s0"], kit.core.state) == (4, WorkerState.COMPUTING)


def test_rule_blocks_that_move_while_they_are_read_are_read_where_they_are() -> None:
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
    assert kit.core.held == {"s1": 0}


def test_rule_a_read_that_was_given_up_half_way_is_read_in_full_next_time() -> None:
    kit = WorkerKit()
    kit.computing(0)
    kit.core.ask(kit.now, 0)
    reads = {s.to: s.message.req for s in kit.grant(1, 6) if isinstance(s, Send) and isinstance(s.message, Pull)}
    kit.hear(part(reads["s0"], 1, 0), "s0", ("x",))
    kit.core.ask(kit.now, 0)
    again = {s.to: s.message for s in kit.grant(1, 7) if isinstance(s, Send) and isinstance(s.message, Pull)}
    assert (again["s0"].have, again["s1"].have) == (-1, 0)
