"""A primary sends its sums to every backup, repeats them, and reports backups that are silent."""

from __future__ import annotations

from tests.kit.core import sent
from tests.kit.placed_server import ALL, Server, placement

from paceline.messages import (
    PushAck,
    Reachable,
    Ready,
    Replicate,
    Replicated,
    Unreachable,
)
from paceline.types import INIT_STEP, NodeId, Placement


def test_a_primary_without_copies_is_ready_at_once() -> None:
    server = Server("s0", Placement(1, ("s0",) * ALL, {"s0": "here"}))
    assert [type(s.message) for s in server.push(INIT_STEP, 1)] == [Ready, PushAck]


def test_a_backup_gets_only_the_blocks_that_it_copies() -> None:
    server = Server("s0", placement(1, ("s0", "s1"), ("s0", "s2")))
    out = [s for s in server.push(INIT_STEP, 1) if isinstance(s.message, Replicate)]
    assert [(s.to, [f.block for f in s.message.blocks]) for s in out if isinstance(s.message, Replicate)] == [
        ("s1", [0]),
        ("s2", [1]),
    ]


def test_a_sum_is_repeated_until_it_is_answered() -> None:
    server = Server("s0", placement(1, ("s0", "s1")))
    (asked,) = sent(server.push(INIT_STEP, 1), Replicate)
    again = [m for tenth in range(20) for m in sent(server.core.tick(tenth / 10), Replicate)]
    assert again == [asked]
    assert server.core.greet("s1", 1.6)[0].message == asked
    server.say("s1", Replicated(asked.req, 0, 1))
    assert sent(server.core.tick(4.0), Replicate) == []


def test_a_silent_backup_is_reported_until_it_answers() -> None:
    server = Server("s0", placement(1, ("s0", "s1", "s2")))
    first, second = sent(server.push(INIT_STEP, 1), Replicate)
    server.say("s2", Replicated(second.req, 0, 1))
    reports: list[Unreachable] = []
    for tenth in range(40):
        server.now = tenth / 10
        reports += sent(server.core.tick(server.now), Unreachable, "coordinator")
    assert {r.peer for r in reports} == {"s1"}
    assert min(r.silent_s for r in reports) >= 3.0
    assert [r.peer for r in sent(server.say("s1", Replicated(first.req, 0, 1)), Reachable)] == ["s1"]


def test_the_silence_of_a_backup_continues_in_the_next_placement() -> None:
    server = Server("s0", placement(1, ("s0", "s1", "s2")))
    first, second = sent(server.push(INIT_STEP, 1), Replicate)
    server.say("s2", Replicated(second.req, 0, 1))

    def reports(until_s: float) -> list[tuple[float, NodeId]]:
        found = []
        while server.now < until_s - 0.05:
            server.now += 0.1
            found += [(server.now, r.peer) for r in sent(server.core.tick(server.now), Unreachable)]
        return found

    assert reports(2.9) == []
    server.tell(server.assign(placement(2, ("s0", "s1", "s2"))))
    assert reports(5.0) == [], "nothing was sent, so no answer is missing"
    server.tell(server.assign(placement(3, ("s0", "s1", "s2"))))
    first, second = sent(server.push(INIT_STEP, 2, epoch=3), Replicate)
    at, peer = reports(8.0)[0]
    assert peer == "s1"
    assert 5.25 <= at <= 5.8, "the earlier silence counts"
    server.say("s1", Replicated(first.req, 0, 3))
    server.tell(server.assign(placement(4, ("s0", "s1"))))
    server.push(INIT_STEP, 3, epoch=4)
    assert reports(10.9) == [], "the backup answered, so its silence restarts"
    assert reports(11.6) != []


def test_a_silent_backup_gets_a_grace_period_in_a_new_placement() -> None:
    server = Server("s0", placement(1, ("s0", "s1")))
    server.push(INIT_STEP, 1)
    for half in range(1, 11):
        server.now = half / 2
        server.core.tick(server.now)
    server.tell(server.assign(placement(2, ("s0", "s1"))))
    server.now = 5.4
    server.push(INIT_STEP, 2, epoch=2)
    assert sent(server.core.tick(5.5), Unreachable) == []
    assert [r.peer for r in sent(server.core.tick(6.0), Unreachable)] == ["s1"]


def test_a_late_answer_ends_the_silence() -> None:
    server = Server("s0", placement(1, ("s0", "s1")))
    (late,) = sent(server.push(INIT_STEP, 1), Replicate)
    for half in range(1, 6):
        server.now = half / 2
        server.core.tick(server.now)
    server.tell(server.assign(placement(2, ("s0", "s1"))))
    server.push(INIT_STEP, 2, epoch=2)
    server.say("s1", Replicated(late.req, 0, 1))
    for half in range(6, 11):
        server.now = half / 2
        assert sent(server.core.tick(server.now), Unreachable) == []


def test_the_silence_of_a_backup_starts_anew_after_it_left_the_set() -> None:
    server = Server("s0", placement(1, ("s0", "s1")))
    server.push(INIT_STEP, 1)
    for half in range(1, 8):
        server.now = half / 2
        server.core.tick(server.now)
    for epoch, sets in ((2, ("s0",)), (3, ("s0", "s1"))):
        server.tell(server.assign(placement(epoch, sets)))
    server.push(INIT_STEP, 2, epoch=3)
    for half in range(8, 13):
        server.now = half / 2
        assert sent(server.core.tick(server.now), Unreachable) == []


def test_silence_does_not_count_the_time_in_which_the_primary_was_stopped() -> None:
    server = Server("s0", placement(1, ("s0", "s1")))
    server.core.tick(0.0)
    server.push(INIT_STEP, 1)
    server.core.tick(0.5)
    assert sent(server.core.tick(60.0), Unreachable) == []
