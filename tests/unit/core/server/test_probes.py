"""Servers that try to reach others again."""

from __future__ import annotations

from paceline.core.effects import Send
from paceline.core.server.probes import Probing
from paceline.messages import Hail, Reachable, Try


def test_the_first_answer_is_told_once() -> None:
    probing = Probing()
    assert probing.answered("s1") == [], "nobody wants to know"
    assert probing.begin(Try(1, "s1", "tcp://there"), 0.0) == [Send("s1", Hail())]
    assert probing.peers == {"s1": "tcp://there"}
    assert probing.greet("s1") == [Send("s1", Hail())]
    assert probing.greet("s2") == []
    assert probing.answered("s1") == [Send("coordinator", Reachable("s1"))]
    assert probing.answered("s1") == []
    assert probing.peers == {}


def test_what_is_not_asked_for_again_is_given_up() -> None:
    probing = Probing()
    probing.begin(Try(1, "s1", "one"), 0.0)
    probing.begin(Try(1, "s2", "two"), 2.0)
    assert set(probing.peers) == {"s1", "s2"}
    probing.begin(Try(1, "s2", "two"), 4.0)
    assert set(probing.peers) == {"s2"}
