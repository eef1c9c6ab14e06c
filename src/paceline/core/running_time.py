"""Measure the time during which this process itself ran. Rule 7: only such time counts as the silence of a peer."""

from __future__ import annotations


class RunningTime:
    """Converts a monotonic clock to the time during which this process ran.

    A gap of more than `max_gap_s` between two readings means that the process itself was stopped or got no CPU time.
    Only `max_gap_s` of such a gap counts.
    """

    def __init__(self, max_gap_s: float = 1.0) -> None:
        self.max_gap_s = max_gap_s
        self.value = 0.0
        self._last: float | None = None

    def advance(self, monotonic_s: float) -> float:
        """Take a reading of the monotonic clock; returns the running time at this reading."""
        if self._last is not None:
            self.value += min(max(0.0, monotonic_s - self._last), self.max_gap_s)
        self._last = monotonic_s
        return self.value
