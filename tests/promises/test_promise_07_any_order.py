"""Promise 7, roles start in any order."""

from __future__ import annotations

from tests.kit.core import Desk, sent, written

from paceline.core.effects import PlacementFact
from paceline.messages import (
    Assign,
    Prepared,
    Register,
    Welcome,
)


def test_roles_start_in_any_order() -> None:
    desk = Desk(workers=1, servers=2)
    desk.say("server-1", Register(desk.req(), "server", "server-1", 1, "here", "at-1"))
    assert sent(desk.join("worker-0"), Prepared) == [], "a server is missing"
    effects = desk.say("server-0", Register(desk.req(), "server", "server-0", 1, "here", "at-0"))
    assert len(sent(effects, Welcome, "server-0")) == 1
    assert len(written(effects, PlacementFact)) == 1
    assert {a.hold for a in sent(effects, Assign)} == {desk.core.spec.held}
    (prepared,) = sent(effects, Prepared, "worker-0")
    assert prepared.placement.addresses == {"server-0": "at-0", "server-1": "at-1"}
