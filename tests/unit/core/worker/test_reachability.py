"""A worker reports servers that it cannot reach, and counts only the time in which it tried."""

from __future__ import annotations

from paceline.core.worker.reachability import ServerReachability
from paceline.messages import Message, Reachable, Unreachable


def reports(
    reachability: ServerReachability, start: float, end: float, servers: tuple[str, ...] = ("a", "b")
) -> list[tuple[float, Message]]:
    """Return the reports made while time passes in tenths of a second."""
    out: list[tuple[float, Message]] = []
    for tenth in range(round(start * 10), round(end * 10)):
        out += [(tenth / 10, message) for message in reachability.tick(tenth / 10, servers, 4)]
    return out


def names(found: list[tuple[float, Message]]) -> list[tuple[int, str]]:
    return [(round(at), getattr(message, "peer")) for at, message in found]  # noqa: B009


def test_a_server_that_is_never_reached_is_reported_every_second() -> None:
    reachability = ServerReachability(3.0)
    reachability.up("a")
    found = reports(reachability, 0.0, 6.0)
    assert names(found) == [(3, "b"), (4, "b"), (5, "b")]
    first = found[0][1]
    assert isinstance(first, Unreachable)
    assert first.epoch == 4
    assert 3.0 <= first.silent_s < 3.2


def test_a_session_that_comes_back_in_time_is_not_reported() -> None:
    reachability = ServerReachability(3.0)
    for peer in ("a", "b"):
        reachability.up(peer)
    reachability.down("a")
    assert reports(reachability, 0.0, 2.9) == []
    reachability.up("a")
    assert reports(reachability, 2.9, 3.0) == []
    reachability.down("a")
    assert reports(reachability, 3.0, 5.5) == [], "the time before the session came back does not count"
    assert names(reports(reachability, 5.5, 6.5)) == [(6, "a")], "the session does not come back this time"


def test_a_server_that_is_reached_again_is_reported_once() -> None:
    reachability = ServerReachability(3.0)
    reachability.up("b")
    assert names(reports(reachability, 0.0, 3.5)) == [(3, "a")]
    reachability.up("a")
    assert [m for _, m in reports(reachability, 3.5, 9.0)] == [Reachable("a")]


def test_a_server_without_blocks_is_not_reported_any_more() -> None:
    reachability = ServerReachability(3.0)
    reachability.up("b")
    assert names(reports(reachability, 0.0, 3.5)) == [(3, "a")]
    assert reports(reachability, 3.5, 9.0, ("b",)) == []


def test_time_without_a_try_does_not_count() -> None:
    """A worker that computes does not read its port, so the server may be reachable again unnoticed."""
    reachability = ServerReachability(3.0)
    reachability.up("b")
    assert reports(reachability, 0.0, 0.2) == []
    assert reports(reachability, 60.0, 60.2) == []
    assert names(reports(reachability, 60.2, 63.0)) == [(62, "a")]
