"""Whom a worker asks for a slot, how long it waits, and when it helps itself."""

from __future__ import annotations

from paceline.core.sampler.asking import Asking
from paceline.types import Segment, SlotId

SEGMENT = Segment(0, 0, 0, 0, 40, 1, 160, 4, 1, True, False, 0, "bsp")
NODES = {"sampler-0/1": "tcp://h:1", "sampler-1/1": "tcp://h:2"}


def asking(*up: str) -> Asking:
    found = Asking()
    found.roster(NODES)
    for node in up or NODES:
        found.up(node)
    return found


def test_without_a_session_nobody_is_asked() -> None:
    found = Asking()
    new, gone = found.roster(NODES)
    assert (sorted(new), gone) == (["tcp://h:1", "tcp://h:2"], [])
    assert not found.has_samplers
    assert found.begin(SEGMENT, SlotId(0, 0), 0.0) is None
    assert found.roster({}) == ([], ["tcp://h:1", "tcp://h:2"])


def test_the_next_one_is_asked_after_a_refusal_a_loss_or_a_long_wait_and_then_nobody() -> None:
    for happens in ("refused", "down", "late"):
        found = asking()
        first = found.begin(SEGMENT, SlotId(0, 0), 10.0)
        assert first is not None
        assert 0 < found.wait_s(10.0) <= 1.0
        if happens == "refused":
            second = found.next(10.1)
        else:
            second = found.down(first, 10.1) if happens == "down" else found.late(11.0)
        assert {first, second} == set(NODES)
        assert found.next(12.0) is None
        assert found.node is None


def test_the_loss_of_a_sampler_that_is_not_asked_changes_nothing() -> None:
    found = asking()
    first = found.begin(SEGMENT, SlotId(0, 0), 0.0)
    other = next(node for node in NODES if node != first)
    assert found.down(other, 0.0) is None
    assert found.node == first
    assert found.next(0.0) == other, "its session may be up again"


def test_a_sampler_that_was_late_is_left_alone_for_longer_and_longer() -> None:
    found = asking("sampler-0/1")
    now, pauses = 0.0, []
    for _ in range(7):
        assert found.begin(SEGMENT, SlotId(0, 0), now) == "sampler-0/1"
        found.late(now)
        at = now
        while found.begin(SEGMENT, SlotId(0, 0), now) is None:
            now += 0.25
        pauses.append(now - at)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    found.answered(0.01)
    found.begin(SEGMENT, SlotId(0, 0), now)
    found.late(now)
    assert found.begin(SEGMENT, SlotId(0, 0), now + 1.0) == "sampler-0/1", "an answer ends the doubt"


def test_the_patience_follows_the_time_that_a_slot_takes() -> None:
    found = asking("sampler-0/1")
    for seconds, longest in ((0.5, 2.0), (10.0, 5.0), (0.0, 3.75)):
        found.begin(SEGMENT, SlotId(0, 0), 0.0)
        found.answered(seconds)
        found.begin(SEGMENT, SlotId(0, 0), 0.0)
        assert found.wait_s(0.0) == longest
    for _ in range(30):
        found.answered(0.0)
    found.begin(SEGMENT, SlotId(0, 0), 0.0)
    assert found.wait_s(0.0) == 0.25
