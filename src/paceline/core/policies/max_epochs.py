"""End the job after a given number of epochs."""

from __future__ import annotations

from paceline.core.policies.base import PolicyEvent, StepDone, StopBefore


class MaxEpochs:
    """Stops the job at the end of epoch `max_epochs`; epochs count from 1, across all loops."""

    def __init__(self, max_epochs: int) -> None:
        self._max_epochs = max_epochs

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """Stop the job once so many epochs are done."""
        if isinstance(event, StepDone) and event.epochs >= self._max_epochs:
            return StopBefore(f"--max-epochs {self._max_epochs}")
        return None
