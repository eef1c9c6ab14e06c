"""Time during which a process itself ran. Rule 7: silence counts only such time."""

from __future__ import annotations


class RunningTime:
    """Turns a monotonic clock into time during which this process ran.

    A gap between two readings longer than `max_gap_s` means that the process itself was stopped or starved, and only
    `max_gap_s` of it counts.
    """

    def __init__(self, max_gap_s: float = 1.0) -> None:
        self.max_gap_s = max_gap_s
        self.value = 0.0
        self._last: float | None = None

    def advance(self, monotonic_s: float) -> float:
        """The running time at this reading."""
        if self._last is not None:
            self.value += min(max(0.0, monotonic_s - self._last), self.max_gap_s)
        self._last = monotonic_s
        return self.value
