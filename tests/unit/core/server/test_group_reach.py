"""A member that waits for the others asks whether they are there, and reports those that do not answer."""

from __future__ import annotations

from tests.kit.core import sent
from tests.kit.group import MemberKit

from paceline.messages import Echo, Echoed, Reachable, Unreachable


def doubt(member: MemberKit, now: float) -> tuple[int, list[str]]:
    """How many members are asked, and which are reported."""
    sends = member.core.group_reach.doubt(now)
    return len(sent(sends, Echo)), [report.peer for report in sent(sends, Unreachable)]


def test_a_member_that_does_not_answer_is_reported_until_it_does() -> None:
    member = MemberKit(size=3)
    reach_s = member.core.replication.reach_s
    assert doubt(member, 0.0) == (2, [])
    assert set(member.core.peers) == {"member-1", "member-2"}
    now = 0.0
    while now < reach_s:
        member.core.handle("member-1", Echoed(), (), now)
        now += 0.5
        _, reported = doubt(member, now)
    assert reported == ["member-2"]
    assert sent(member.core.handle("member-2", Echoed(), (), now), Reachable) == [Reachable("member-2")]
    assert not sent(member.core.handle("member-2", Echoed(), (), now), Reachable)


def test_a_new_session_is_asked_at_once() -> None:
    member = MemberKit()
    assert not sent(member.core.greet("member-1", 0.0), Echo)
    doubt(member, 0.0)
    assert sent(member.core.greet("member-1", 0.5), Echo, "member-1")


def test_a_member_that_waits_no_more_needs_no_sessions() -> None:
    member = MemberKit()
    doubt(member, 0.0)
    member.core.group_reach.trust()
    assert not member.core.peers
    member.group(["member-0", "member-2"], at=0)
    assert doubt(member, 9.0) == (1, []), "silence counts within one epoch"
