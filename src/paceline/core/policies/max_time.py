"""End the job after a given time. Of all policies only this one depends on timing."""

from __future__ import annotations

from paceline.config.policies import time_in_words
from paceline.core.policies.base import Elapsed, PolicyEvent, StopBefore


class MaxTime:
    """Stops the job at the next step boundary once it has run for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """Stop the job once the time is over."""
        if isinstance(event, Elapsed) and event.seconds >= self._seconds:
            return StopBefore(f"--max-time {time_in_words(self._seconds)}")
        return None
