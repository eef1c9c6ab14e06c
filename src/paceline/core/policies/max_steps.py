"""End the job after a given number of steps."""

from __future__ import annotations

from paceline.core.policies.base import PhaseBegan, PolicyEvent, StopBefore


class MaxSteps:
    """No step from `max_steps` on is computed."""

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """Cut a phase that would go on beyond the last step."""
        if isinstance(event, PhaseBegan) and event.end > self._max_steps:
            return StopBefore(f"max_steps is {self._max_steps}", self._max_steps)
        return None
