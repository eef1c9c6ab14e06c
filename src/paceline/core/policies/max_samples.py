"""End the job after a given number of samples."""

from __future__ import annotations

from paceline.core.policies.base import PolicyEvent, StepDone, StopBefore


class MaxSamples:
    """Stops the job after the step in which it reaches `max_samples` applied samples."""

    def __init__(self, max_samples: int) -> None:
        self._max_samples = max_samples

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """Stop the job once so many samples are applied."""
        if isinstance(event, StepDone) and event.samples >= self._max_samples:
            return StopBefore(f"--max-samples {self._max_samples}: {event.samples:.0f} are applied")
        return None
