"""Who is alive, counted in the coordinator's own running time."""

from __future__ import annotations

from paceline.core.coordinator.membership import Member, Membership, RunningTime
from paceline.core.coordinator.pins import PinBook


def add(members: Membership, node: str, now: float, role: str = "worker") -> None:
    members.add(Member(node, role, node, 1, "here", None, now, now))


def test_a_silent_member_is_named_once_and_only_after_the_time_out() -> None:
    members = Membership(10.0)
    add(members, "a", 0.0)
    add(members, "b", 0.0)
    members.seen("b", 8.0)
    assert members.silent(10.0) == []
    lost = members.silent(10.1)
    assert [m.node for m in lost] == ["a"]
    members.remove("a")
    assert members.silent(17.9) == []
    assert [m.node for m in members.silent(18.1)] == ["b"]


def test_signs_of_life_of_strangers_are_told_apart() -> None:
    members = Membership(1.0)
    assert not members.seen("a", 0.0)
    add(members, "a", 0.0)
    assert members.seen("a", 5.0)
    members.remove("a")
    assert not members.seen("a", 6.0)
    assert members.silent(100.0) == []


def test_a_member_that_returns_has_a_full_new_term() -> None:
    members = Membership(10.0)
    add(members, "a", 0.0)
    members.remove("a")
    add(members, "a", 9.0)
    assert members.silent(12.0) == []
    assert [m.node for m in members.silent(19.5)] == ["a"]


def test_the_lead_changes_only_when_it_is_gone() -> None:
    members = Membership(10.0)
    assert members.lead() is None
    add(members, "server", 0.0, role="server")
    add(members, "b", 1.0)
    add(members, "a", 2.0)
    assert members.lead() == "b"
    members.leave("b")
    assert members.lead() == "a"
    add(members, "c", 3.0)
    members.remove("a")
    add(members, "a", 4.0)
    assert members.lead() == "c"
    assert [m.name for m in members.by_role("worker")] == ["a", "b", "c"]


def test_running_time_does_not_count_the_coordinators_own_pauses() -> None:
    clock = RunningTime(max_gap_s=1.0)
    assert clock.advance(100.0) == 0.0
    assert clock.advance(100.5) == 0.5
    assert clock.advance(160.0) == 1.5
    assert clock.advance(159.0) == 1.5
    assert clock.advance(159.25) == 1.75


def test_a_version_is_released_with_its_last_reason() -> None:
    pins = PinBook()
    pins.add(3, "phase 0")
    pins.add(3, "evaluation")
    assert 3 in pins
    assert not pins.discard(3, "phase 0")
    assert not pins.discard(3, "phase 0")
    assert not pins.discard(4, "evaluation")
    assert pins.discard(3, "evaluation")
    assert 3 not in pins
