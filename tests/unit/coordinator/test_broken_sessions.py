"""The coordinator's service tells its core which members have no session: a host without any is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.config.dials import ClusterSpec
from paceline.coordinator.service import CoordinatorService
from paceline.coordinator.store import LogStore
from paceline.messages import Register
from paceline.transport.base import PeerDown, PeerUp
from paceline.transport.inproc import InprocHub


@pytest.fixture
def service() -> Iterator[CoordinatorService]:
    log = LogStore(Path(":memory:"))
    port = InprocHub().port("coordinator/1", listen="coordinator")
    made = CoordinatorService(port, ClusterSpec(servers=2), log)
    for name in ("server-0", "server-1"):
        made.core.handle(name, Register(1, "server", name, 1, "a", "there"), (), 0.0)
    yield made
    made.close()
    port.close()
    log.close()


def test_members_without_a_session_are_told_until_they_have_one_again(
    service: CoordinatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[set[str]] = []

    def note(nodes: set[str], now: float) -> list[object]:
        told.append(set(nodes))
        return []

    monkeypatch.setattr(service.core, "sessions_lost", note)
    service.on_tick(0.0)
    assert told == [], "every member has its session"
    for peer in ("server-0", "server-1", "an observer"):
        service.on_event(PeerDown(peer, "closed"), 0.1)
    service.on_tick(0.2)
    service.on_event(PeerUp("server-1"), 0.3)
    service.on_tick(0.4)
    assert told == [{"server-0", "server-1"}, {"server-0"}]
