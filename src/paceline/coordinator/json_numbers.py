"""Formats numbers for people and for JSON, which has neither nan nor inf."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def plain(values: Mapping[str, float]) -> dict[str, float | str]:
    """Return `values` with nan, inf and -inf as text, because JSON has no such numbers."""
    return {name: value if isfinite(value) else str(value) for name, value in values.items()}


def shown(value: float | str | None, digits: str = ".4g") -> str:
    """Format a number for people with the format `digits`; text stays as it is."""
    return format(value, digits) if isinstance(value, int | float) else str(value)
