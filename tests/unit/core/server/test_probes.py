"""Probes: the coordinator asks a server to try to reach another one."""

from __future__ import annotations

from tests.kit.group import MemberKit

from paceline.core.effects import Send
from paceline.messages import Echo, Probe, Reachable


def test_the_first_answer_is_reported_once() -> None:
    probes = MemberKit().core.probes
    assert probes.answered("s1") == [], "no probe is open"
    assert probes.begin(Probe(1, "s1", "tcp://there"), 0.0) == [Send("s1", Echo())]
    assert probes.peers == {"s1": "tcp://there"}
    assert probes.greet("s1") == [Send("s1", Echo())]
    assert probes.greet("s2") == []
    assert probes.answered("s1") == [Send("coordinator", Reachable("s1"))]
    assert probes.answered("s1") == []
    assert probes.peers == {}


def test_a_probe_that_is_not_renewed_is_dropped() -> None:
    probes = MemberKit().core.probes
    probes.begin(Probe(1, "s1", "one"), 0.0)
    probes.begin(Probe(1, "s2", "two"), 2.0)
    assert set(probes.peers) == {"s1", "s2"}
    probes.begin(Probe(1, "s2", "two"), 4.0)
    assert set(probes.peers) == {"s2"}
