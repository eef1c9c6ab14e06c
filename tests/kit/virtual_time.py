"""Time that only passes when somebody sleeps: tests with deadlines and pauses take no time and need no idle machine."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

import pytest


class VirtualTime:
    """Stands for the module `time` where a test runs in one thread."""

    def __init__(self) -> None:
        self._now = 1000.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += max(0.0, seconds)


def virtual_time(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType, named: Iterable[str] = ()) -> VirtualTime:
    """Let modules, some of them given by name, use one virtual clock until the end of the test."""
    clock = VirtualTime()
    for module in (*modules, *map(importlib.import_module, named)):
        assert hasattr(module, "time"), f"{module.__name__} does not use the module `time`"
        monkeypatch.setattr(module, "time", clock)
    return clock
