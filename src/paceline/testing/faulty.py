"""Planned faults for tests, re-exported from `paceline.transport.faulty`, which a role under test uses as well."""

from __future__ import annotations

from paceline.transport.faulty import FaultPlan, FaultyPort

__all__ = ["FaultPlan", "FaultyPort"]
