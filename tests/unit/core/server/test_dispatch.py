"""A server's protocol, message by message."""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.core import BLOCKS, Recorder, ServerKit, fence, frame, model, plan, segment, sent

from paceline.core.effects import Send
from paceline.core.server.block_store import SumKey
from paceline.core.server.dispatch import ServerCore
from paceline.messages import (
    Abort,
    Assign,
    Beat,
    Choose,
    Ok,
    Pull,
    PullReply,
    PushAck,
    Ready,
    Receipt,
    Refused,
    Summed,
    Unpin,
)
from paceline.types import COORDINATOR, INIT_STEP, UNLIMITED, Placement


def refusal(out: list[Send]) -> str:
    return sent(out, Refused)[0].rule


def test_a_wrong_push_is_refused_by_name_and_counted() -> None:
    server = ServerKit()
    assert refusal(server.push(0, 0, 5, epoch=0)) == "epoch"
    assert refusal(server.push(0, 2, 5)) == "slot"
    assert refusal(server.push(0, -1, 5)) == "slot"
    assert refusal(server.push(5, 0, 5)) == "plan"
    assert refusal(server.push(0, 0, 5, blocks=(frame(0), msgspec.structs.replace(frame(1), block=9)))) == "block"
    assert refusal(server.push(0, 0, 5, blocks=(frame(0), msgspec.structs.replace(frame(1), numel=1)))) == "block"
    assert refusal(server.push(0, 0, 5, blocks=(frame(0), msgspec.structs.replace(frame(1), dtype="int8")))) == "block"
    assert refusal(server.push(0, 0, 5, sealed={9: 0})) == "block"
    assert server.core.refusals.counts == {"epoch": 1, "slot": 2, "plan": 1, "block": 4}
    assert server.core.attempts.steps == {}
    assert server.store.added[1:] == []


def test_before_the_first_placement_pushes_are_refused_and_pulls_are_parked() -> None:
    kit = ServerKit()
    kit.store = Recorder()
    kit.core = ServerCore("server-0", lambda: kit.store)
    assert refusal(kit.push(INIT_STEP, 0, 5, base=-1)) == "plan"
    assert kit.say(Pull(1, 0, 1, 0)) == []
    placement = Placement(1, ("server-0",) * len(BLOCKS), {"server-0": "here"})
    (beat,) = sent(kit.tell(Assign(1, 0, placement, model(), BLOCKS, False)), Beat)
    assert (beat.epoch, beat.applied) == (1, -1)
    kit.push(INIT_STEP, 0, 5, base=-1)
    assert [r.version for r in sent(kit.commit(0, INIT_STEP, 5), PullReply)] == [0]


def test_a_repeated_assignment_changes_nothing() -> None:
    server = ServerKit()
    placement = Placement(1, ("elsewhere",) * len(BLOCKS), {"elsewhere": "there"})
    assert server.tell(Assign(1, 0, placement, model(), BLOCKS, True)) == []
    assert server.core.versions.applied == 0
    assert set(server.core.own.blocks) == {b.index for b in BLOCKS}


def test_a_server_opens_only_its_own_blocks() -> None:
    store = Recorder()
    core = ServerCore("s1", lambda: store)
    core.handle(COORDINATOR, Assign(1, 0, Placement(1, ("s0", "s1"), {}), model(), BLOCKS, False), (), 0.0)
    assert store.blocks == [1]


def test_the_plan_gives_the_number_of_slots_of_a_step() -> None:
    server = ServerKit(segment(data_len=6, end_step=2))
    server.push(0, 0, 5)
    assert len(sent(server.push(0, 1, 6), Ready)) == 1
    server.commit(1, 0, 5, 6)
    assert len(sent(server.push(1, 0, 7), Ready)) == 1, "the last step has one slot only"
    server.tell(plan(segment(data_len=6, end_step=2), segment(step=2, end_step=4, data_len=8)))
    server.tell(plan(segment(data_len=6, end_step=2)))
    assert len(server.core.plan.schedule.segments) == 2, "an older plan that arrives late changes nothing"


def test_a_plan_of_a_higher_revision_replaces_the_whole_schedule() -> None:
    first = segment(slots=2, data_len=20, end_step=5)
    server = ServerKit(first)
    replaced = (first, segment(step=1, offset=4, slots=4, data_len=20, end_step=3))
    server.tell(plan(*replaced, revision=2))
    server.tell(plan(first, segment(step=1, offset=4, slots=1, data_len=20, end_step=9), revision=3))
    assert [s.slots for s in server.core.plan.schedule.segments] == [2, 1], "one segment is replaced"
    server.tell(plan(*replaced, revision=2))
    assert [s.slots for s in server.core.plan.schedule.segments] == [2, 1], "a lower revision is ignored"
    (beat, *_) = sent(server.core.tick(9.0), Beat)
    assert beat.revision == 3
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    server.commit(1, 0, 5, 6)
    assert len(sent(server.push(1, 0, 7), Ready)) == 1, "step 1 has the one slot of the new segment"


def test_a_ready_report_has_the_staleness_and_the_lag_of_its_state() -> None:
    server = ServerKit(segment(slots=1, data_len=20, window=3, end_step=10))
    for step in range(3):
        server.push(step, 0, 5 + step)
        server.commit(step + 1, step, 5 + step)
    (ready,) = sent(server.push(4, 0, 9, base=2), Ready)
    assert (ready.staleness, ready.lag) == (2, 1)


def test_unanswered_reports_are_repeated_with_the_beat() -> None:
    server = ServerKit(one_attempt=True)
    server.push(0, 0, 5)
    out = server.core.tick(10.0)
    assert [type(s.message) for s in out] == [Beat, Receipt]
    assert server.core.tick(10.1) == []
    server.tell(Choose(1, 0, 1, 0, 0, fence(5)))
    assert [type(s.message) for s in server.core.tick(11.0)] == [Beat]
    server.push(0, 1, 6)
    server.tell(Choose(1, 0, 1, 0, 1, fence(6)))
    assert [type(s.message) for s in server.core.tick(12.0)] == [Beat, Ready]
    server.commit(1, 0, 5, 6)
    assert [type(s.message) for s in server.core.tick(13.0)] == [Beat]


def test_a_choice_counts_once_and_only_for_an_attempt_that_the_server_has() -> None:
    server = ServerKit(one_attempt=True)
    assert server.tell(Choose(1, 0, 1, 0, 0, fence(5))) == []
    server.push(0, 0, 5)
    server.push(0, 0, 6)
    server.tell(Choose(1, 7, 1, 0, 0, fence(5)))
    server.tell(Choose(1, 0, 0, 0, 0, fence(5)))  # the placement has changed since
    server.tell(Choose(1, 0, 1, 0, 0, fence(6)))
    server.tell(Choose(1, 0, 1, 0, 0, fence(5)))
    assert server.slots_added(0) == ["6"]


def test_a_gap_in_the_log_is_reported_once() -> None:
    server = ServerKit()
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    assert [b.applied for b in sent(server.commit(2, 1, 7, 8), Beat)] == [0]
    assert server.commit(3, 2, 9, 9) == []
    server.commit(1, 0, 5, 6)
    assert [b.applied for b in sent(server.commit(3, 2, 9, 9), Beat)] == [1]


def test_pinned_versions_stay_readable_until_they_are_unpinned() -> None:
    server = ServerKit(segment(slots=1, data_len=20, end_step=10))
    server.push(0, 0, 5)
    server.commit(1, 0, 5, pin=True)
    server.push(1, 0, 6)
    server.commit(2, 1, 6)
    assert [r.version for r in sent(server.say(Pull(1, 0, 1, 1)), PullReply)] == [1]
    (beat,) = sent(server.core.tick(10.0), Beat)
    assert beat.kept == (1,)
    server.tell(Unpin(1, 9, 1))
    assert sent(server.say(Pull(2, 0, 1, 1)), PullReply)
    server.tell(Unpin(1, 0, 1))
    assert refusal(server.say(Pull(3, 0, 1, 1))) == "gone"
    assert (server.store.kept, server.store.released) == ([1], [1])


def test_a_commit_can_keep_the_version_before_it_readable() -> None:
    server = ServerKit(segment(slots=1, data_len=20, end_step=10))
    server.push(0, 0, 5)
    server.commit(1, 0, 5, keep=True)
    assert [r.version for r in sent(server.say(Pull(1, 0, 1, 0)), PullReply)] == [0]
    assert server.store.kept == [0]


def test_pulls_with_a_window_wait_for_their_watermark_or_step() -> None:
    server = ServerKit(segment(slots=1, data_len=20, window=UNLIMITED, end_step=10))
    assert sent(server.say(Pull(1, 0, 1, -1, watermark=0)), PullReply)[0].version == 0
    assert server.say(Pull(2, 0, 1, -1, watermark=1), sender="a") == []
    assert server.say(Pull(3, 0, 1, -1, after=2), sender="b") == []
    server.push(2, 0, 5, base=0)
    out = server.commit(1, 2, 5)
    assert [(s.to, r.version, r.watermark) for s in out if isinstance(r := s.message, PullReply)] == [("b", 1, 0)]
    server.push(0, 0, 6, base=0)
    out = server.commit(2, 0, 6)
    assert [(s.to, r.version, r.watermark) for s in out if isinstance(r := s.message, PullReply)] == [("a", 2, 1)]


def test_a_newer_pull_of_the_same_blocks_replaces_the_older() -> None:
    server = ServerKit()
    for req in (1, 1, 2, 1):
        server.say(Pull(req, 0, 1, 1))
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    assert [r.req for r in sent(server.commit(1, 0, 5, 6), PullReply)] == [2]


def test_a_reader_may_have_one_parked_pull_for_each_set_of_blocks() -> None:
    server = ServerKit()
    for block in (0, 1):
        server.say(Pull(block, 0, 1, 1, blocks=(block,)))
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    assert [r.req for r in sent(server.commit(1, 0, 5, 6), PullReply)] == [0, 1]


def test_the_parked_pulls_of_a_lost_peer_are_dropped() -> None:
    server = ServerKit()
    server.say(Pull(1, 0, 1, 1))
    server.core.forget("worker-0")
    server.push(0, 0, 5)
    server.push(0, 1, 6)
    assert sent(server.commit(1, 0, 5, 6), PullReply) == []


def test_progress_is_reported_only_if_a_step_has_more_slots_than_hold() -> None:
    quiet = ServerKit(segment(slots=4, data_len=40), hold=4)
    assert sent(quiet.push(0, 0, 5), Summed) == []
    server = ServerKit(segment(slots=4, data_len=40), hold=2)
    assert sent(server.push(0, 1, 6), Summed) == []
    assert [m.count for m in sent(server.push(0, 0, 5), Summed)] == [2]
    assert [m.count for m in sent(server.core.tick(10.0), Summed)] == [2]
    server.push(0, 2, 7)
    assert [type(s.message) for s in server.push(0, 3, 8)] == [Ready, PushAck]
    assert sent(server.core.tick(20.0), Summed) == []


@pytest.mark.parametrize("window", [0, 3])
def test_sums_beyond_the_last_version_of_a_stopped_job_are_dropped(window: int) -> None:
    slots = 2 if window == 0 else 1
    server = ServerKit(segment(slots=slots, data_len=40, window=window, end_step=10))
    server.push(0, 0, 5)
    if slots == 2:
        server.push(0, 1, 6)
    server.commit(1, 0, *((5, 6) if slots == 2 else (5,)))
    server.push(1, 0, 7, base=1)
    closing = segment(step=1, offset=4, end_step=1, slots=slots, window=window)
    stopped = plan(segment(slots=slots, data_len=40, window=window, end_step=10), closing, final=1)
    server.tell(stopped)
    assert server.core.attempts.steps == {}
    assert server.store.dropped == [SumKey(1, None if slots == 2 else fence(7))]
    assert sent(server.push(1, 0, 8, base=1), PushAck)[0].outcome == "late"
    assert server.core.attempts.steps == {}


def test_sums_stay_until_the_last_commit_of_a_stopped_job_has_arrived() -> None:
    first = segment(slots=1, data_len=20, window=3, end_step=10)
    server = ServerKit(first)
    server.push(2, 0, 7, base=0)
    server.tell(plan(first, segment(slots=1, step=1, offset=2, end_step=1, window=3), final=1))
    server.commit(1, 2, 7)
    assert [c.step for _, c in server.store.applied] == [INIT_STEP, 2]
    assert server.core.attempts.steps == {}


def test_a_server_keeps_the_reason_of_an_abort_and_ignores_later_messages() -> None:
    server = ServerKit()
    server.tell(Abort(1, "failed", "why"))
    assert server.core.failed is not None
    assert server.core.failed.reason == "why"
    assert server.tell(Ok(1)) == []


def test_watermarks_of_versions_outside_the_window_are_forgotten() -> None:
    server = ServerKit(segment(slots=1, data_len=200, window=2, end_step=100))
    for step in range(50):
        server.push(step, 0, 5 + step)
        server.commit(step + 1, step, 5 + step)
    assert len(server.core.versions._marks) == 3


def test_unsealed_blocks_are_offered_to_the_store_if_attempts_are_interchangeable() -> None:
    kit = ServerKit()
    kit.push(0, 1, 6, revs={0: 0}, seal=False, weight=0.5)
    assert kit.store.anticipated == [(SumKey(0, None), 1, fence(6), 0.5, {0: (0, "6:0:0")})]
    kit.push(0, 1, 6, revs={0: 0}, seal=False)
    assert len(kit.store.anticipated) == 1, "a repetition is not offered again"
    kit.push(0, 1, 6, revs={1: 3}, seal=False)
    assert kit.store.anticipated[-1][-1] == {1: (3, "6:1:3")}
    kit.push(0, 0, 5)
    kit.push(0, 1, 6, revs={0: 1, 1: 4}, sealed={0: 1, 1: 4})
    assert kit.store.names[-2:] == [(0, fence(5), {0: 0, 1: 0}), (1, fence(6), {0: 1, 1: 4})]
    chosen = ServerKit(one_attempt=True)
    chosen.push(0, 1, 6, revs={0: 0}, seal=False)
    assert chosen.store.anticipated == [], "the attempt that will count is not known"


def test_a_large_reply_comes_in_parts_in_model_order() -> None:
    kit = ServerKit()
    (whole,) = kit.say(Pull(90, 0, 1, 0))
    assert isinstance(whole.message, PullReply)
    assert (whole.message.part, whole.message.parts) == (0, 1)
    parts = ServerKit(part_nbytes=1).say(Pull(91, 0, 1, 0))
    assert [(s.message.part, s.message.parts) for s in parts if isinstance(s.message, PullReply)] == [(0, 2), (1, 2)]
    assert [b.block for s in parts if isinstance(s.message, PullReply) for b in s.message.blocks] == [0, 1]
    assert [p for s in parts for p in s.payload] == list(whole.payload)
