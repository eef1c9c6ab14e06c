"""Formats numbers for people and for JSON, which has neither nan nor inf."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def plain(values: Mapping[str, float]) -> dict[str, float | str]:
    """Return `values` with nan, inf and -inf as text, because JSON has no such numbers."""
    return {name: value if isfinite(value) else str(value) for name, value in values.items()}


def shown(value: float | str | None) -> str:
    """Format a number for people, in a short form; text stays as it is."""
    return format(value, ".4g") if isinstance(value, int | float) else str(value)


def shown_in_column(value: float | str | None) -> str:
    """Format a number with four decimals, or with an exponent if four decimals do not show it; text stays as it is."""
    if not isinstance(value, int | float):
        return str(value)
    return format(value, ".4f" if value == 0 or abs(value) >= 0.001 else ".4g")
