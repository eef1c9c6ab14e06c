"""Numbers for people and for JSON, which knows neither nan nor inf."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite


def plain(values: Mapping[str, float]) -> dict[str, float | str]:
    """`values` with those that JSON cannot hold as text: ``nan``, ``inf``, ``-inf``."""
    return {name: value if isfinite(value) else str(value) for name, value in values.items()}


def shown(value: float | str | None, digits: str = ".4g") -> str:
    """A number as people read it."""
    return format(value, digits) if isinstance(value, int | float) else str(value)
