"""End the job once a metric of validation is good enough."""

from __future__ import annotations

from paceline.config.policies import Target
from paceline.core.policies.base import Decision, PolicyEvent, StopBefore, ValidationDone
from paceline.core.policies.metric_choice import choose_metric


class ReachTarget:
    """Stops the job when `target` is reached. `name` is how the user has asked for it."""

    def __init__(self, target: Target, name: str) -> None:
        self._target = target
        self._name = name

    def decide(self, event: PolicyEvent) -> Decision | None:
        """Stop the job if the metric is good enough; warn of a metric that no validation produces."""
        if not isinstance(event, ValidationDone):
            return None
        metric = choose_metric(event, self._target.metric, self._name)
        if not isinstance(metric, str):
            return metric
        if not self._target.is_reached(value := event.metrics[metric]):
            return None
        return StopBefore(f"{self._name} is reached: {metric} is {value:.6g} at version {event.version}", event.step)
