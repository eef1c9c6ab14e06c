"""End the job after a given number of steps."""

from __future__ import annotations

from paceline.core.policies.base import PhaseBegan, PolicyEvent, StopBefore


class MaxSteps:
    """Stops the job before step `max_steps`; steps count from 0."""

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """Stop the job before step `max_steps` if a phase that begins would end later."""
        if isinstance(event, PhaseBegan) and event.end > self._max_steps:
            return StopBefore(f"--max-steps {self._max_steps}", self._max_steps)
        return None
