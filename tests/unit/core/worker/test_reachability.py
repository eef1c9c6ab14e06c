"""A worker tells of servers that it cannot reach, by name, and only of the time in which it tried."""

from __future__ import annotations

from paceline.core.worker.reachability import ServerReachability
from paceline.messages import Message, Reachable, Unreachable


def told(
    watching: ServerReachability, start: float, end: float, servers: tuple[str, ...] = ("a", "b")
) -> list[tuple[float, Message]]:
    """What is told while time passes in tenths of a second."""
    out: list[tuple[float, Message]] = []
    for tenth in range(round(start * 10), round(end * 10)):
        out += [(tenth / 10, message) for message in watching.tick(tenth / 10, servers, 4)]
    return out


def names(found: list[tuple[float, Message]]) -> list[tuple[int, str]]:
    return [(round(at), getattr(message, "peer")) for at, message in found]  # noqa: B009


def test_a_server_that_was_never_reached_is_told_of_again_and_again() -> None:
    watching = ServerReachability(3.0)
    watching.up("a")
    found = told(watching, 0.0, 6.0)
    assert names(found) == [(3, "b"), (4, "b"), (5, "b")]
    first = found[0][1]
    assert isinstance(first, Unreachable)
    assert first.epoch == 4
    assert 3.0 <= first.silent_s < 3.2


def test_a_session_that_comes_back_in_time_is_not_worth_a_word() -> None:
    watching = ServerReachability(3.0)
    for peer in ("a", "b"):
        watching.up(peer)
    watching.down("a")
    assert told(watching, 0.0, 2.9) == []
    watching.up("a")
    assert told(watching, 2.9, 3.0) == []
    watching.down("a")
    assert told(watching, 3.0, 5.5) == [], "the time before does not count"
    assert names(told(watching, 5.5, 6.5)) == [(6, "a")], "this time it does not come back"


def test_whoever_is_reached_again_is_told_of_once() -> None:
    watching = ServerReachability(3.0)
    watching.up("b")
    assert names(told(watching, 0.0, 3.5)) == [(3, "a")]
    watching.up("a")
    assert [m for _, m in told(watching, 3.5, 9.0)] == [Reachable("a")]


def test_a_server_that_holds_nothing_any_longer_is_forgotten() -> None:
    watching = ServerReachability(3.0)
    watching.up("b")
    assert names(told(watching, 0.0, 3.5)) == [(3, "a")]
    assert told(watching, 3.5, 9.0, ("b",)) == []


def test_time_in_which_nobody_tried_does_not_count() -> None:
    """A worker that computes does not look at its port: a server may well have come back meanwhile."""
    watching = ServerReachability(3.0)
    watching.up("b")
    assert told(watching, 0.0, 0.2) == []
    assert told(watching, 60.0, 60.2) == []
    assert names(told(watching, 60.2, 63.0)) == [(62, "a")]
