"""Pins: the reasons for which servers keep versions readable."""

from __future__ import annotations

from paceline.core.coordinator.tables.pins import VALIDATION, ForPhase, PinBook


def test_a_version_is_released_when_its_last_pin_is_removed() -> None:
    pins = PinBook()
    pins.add(3, ForPhase(0))
    pins.add(3, VALIDATION)
    assert 3 in pins
    assert not pins.discard(3, ForPhase(0))
    assert not pins.discard(3, ForPhase(0))
    assert not pins.discard(4, VALIDATION)
    assert pins.discard(3, VALIDATION)
    assert 3 not in pins
