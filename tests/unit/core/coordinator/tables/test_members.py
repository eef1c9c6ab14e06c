"""Members: signs of life, silence and the lead."""

from __future__ import annotations

from paceline.core.coordinator.tables.members import Member, Members


def add(members: Members, node: str, now: float, role: str = "worker") -> None:
    members.add(Member(node, role, node, 1, "here", None, now, now))


def test_a_silent_member_is_reported_once_and_only_after_the_timeout() -> None:
    members = Members(10.0)
    add(members, "a", 0.0)
    add(members, "b", 0.0)
    members.seen("b", 8.0)
    assert members.expire(10.0) == []
    lost = members.expire(10.1)
    assert [m.node for m in lost] == ["a"]
    members.remove("a")
    assert members.expire(17.9) == []
    assert [m.node for m in members.expire(18.1)] == ["b"]


def test_messages_of_a_process_that_is_not_a_member_are_no_sign_of_life() -> None:
    members = Members(1.0)
    assert not members.seen("a", 0.0)
    add(members, "a", 0.0)
    assert members.seen("a", 5.0)
    members.remove("a")
    assert not members.seen("a", 6.0)
    assert members.expire(100.0) == []


def test_a_member_that_returns_has_a_full_new_term() -> None:
    members = Members(10.0)
    add(members, "a", 0.0)
    members.remove("a")
    add(members, "a", 9.0)
    assert members.expire(12.0) == []
    assert [m.node for m in members.expire(19.5)] == ["a"]


def test_the_lead_changes_only_when_it_leaves_or_is_lost() -> None:
    members = Members(10.0)
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
