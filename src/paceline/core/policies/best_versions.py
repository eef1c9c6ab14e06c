"""Which versions are the best ones by a metric of validation."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan


def best_versions(values: Mapping[int, float], *, larger: bool) -> list[int]:
    """The versions with a value, best first. Of equal values the earlier version is better; a NaN is never good."""
    good = [(version, value) for version, value in values.items() if not isnan(value)]
    return [version for version, _ in sorted(good, key=lambda item: (-item[1] if larger else item[1], item[0]))]
