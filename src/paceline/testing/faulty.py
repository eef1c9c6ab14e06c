"""Planned faults for tests: see `paceline.transport.faulty`, where a role under test takes them from too."""

from __future__ import annotations

from paceline.transport.faulty import FaultPlan, FaultyPort

__all__ = ["FaultPlan", "FaultyPort"]
