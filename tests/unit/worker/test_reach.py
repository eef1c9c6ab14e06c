"""A worker tells of servers that it cannot reach, by name, and only of the time in which it tried."""

from __future__ import annotations

from paceline.messages import Message, Reachable, Unreachable
from paceline.transport.base import PeerDown, PeerUp
from paceline.worker.reach import Reach


def told(reach: Reach, start: float, end: float, servers: tuple[str, ...] = ("a", "b")) -> list[tuple[float, Message]]:
    """What is told while time passes in tenths of a second."""
    out: list[tuple[float, Message]] = []
    for tenth in range(round(start * 10), round(end * 10)):
        out += [(tenth / 10, message) for message in reach.tick(tenth / 10, servers, 4)]
    return out


def names(found: list[tuple[float, Message]]) -> list[tuple[int, str]]:
    return [(round(at), getattr(message, "peer")) for at, message in found]  # noqa: B009


def test_a_server_that_was_never_reached_is_told_of_again_and_again() -> None:
    reach = Reach(3.0)
    reach.note(PeerUp("a"))
    found = told(reach, 0.0, 6.0)
    assert names(found) == [(3, "b"), (4, "b"), (5, "b")]
    first = found[0][1]
    assert isinstance(first, Unreachable)
    assert first.epoch == 4
    assert 3.0 <= first.silent_s < 3.2


def test_a_session_that_comes_back_in_time_is_not_worth_a_word() -> None:
    reach = Reach(3.0)
    for peer in ("a", "b"):
        reach.note(PeerUp(peer))
    reach.note(PeerDown("a", "gone"))
    assert told(reach, 0.0, 2.9) == []
    reach.note(PeerUp("a"))
    assert told(reach, 2.9, 3.0) == []
    reach.note(PeerDown("a", "gone"))
    assert told(reach, 3.0, 5.5) == [], "the time before does not count"


def test_whoever_is_reached_again_is_told_of_once() -> None:
    reach = Reach(3.0)
    reach.note(PeerUp("b"))
    assert names(told(reach, 0.0, 3.5)) == [(3, "a")]
    reach.note(PeerUp("a"))
    assert [m for _, m in told(reach, 3.5, 9.0)] == [Reachable("a")]


def test_a_server_that_holds_nothing_any_longer_is_forgotten() -> None:
    reach = Reach(3.0)
    reach.note(PeerUp("b"))
    assert names(told(reach, 0.0, 3.5)) == [(3, "a")]
    assert told(reach, 3.5, 9.0, ("b",)) == []


def test_time_in_which_nobody_tried_does_not_count() -> None:
    """A worker that computes does not look at its port: a server may well have come back meanwhile."""
    reach = Reach(3.0)
    reach.note(PeerUp("b"))
    assert told(reach, 0.0, 0.2) == []
    assert told(reach, 60.0, 60.2) == []
    assert names(told(reach, 60.2, 63.0)) == [(62, "a")]
