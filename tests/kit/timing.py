"""Bounds on real time. Other load can only make an attempt slower: one of a few attempts within the bound is enough."""

from __future__ import annotations

from collections.abc import Callable


def quickest(attempt: Callable[[], float], bound_s: float, tries: int = 5) -> float:
    """The shortest time that an attempt returns; the last attempt is the first one below `bound_s`."""
    best = attempt()
    for _ in range(tries - 1):
        if best < bound_s:
            break
        best = min(best, attempt())
    return best
