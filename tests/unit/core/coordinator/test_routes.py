"""The wiring of the coordinator's machines."""

from __future__ import annotations

from paceline.config.dials import ClusterSpec
from paceline.core.coordinator import events
from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.coordinator.routes import subscribers


def test_every_class_of_events_has_subscribers() -> None:
    core = CoordinatorCore(ClusterSpec(workers=1, servers=1), 1)
    heard = subscribers(core.machines)
    assert set(heard) == set(events.Event.__subclasses__())
    assert all(heard.values())
