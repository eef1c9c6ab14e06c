"""Planned faults for tests, re-exported from `paceline.transport.faulty`: roles cannot import `paceline.testing`."""

from __future__ import annotations

from paceline.transport.faulty import FaultPlan, FaultyPort

__all__ = ["FaultPlan", "FaultyPort"]
