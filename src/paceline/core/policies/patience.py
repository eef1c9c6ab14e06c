"""End the job once a metric of validation has not become better for a number of validations."""

from __future__ import annotations

from paceline.config.policies import larger_is_better
from paceline.core.policies.base import Decision, PolicyEvent, StopBefore, ValidationDone
from paceline.core.policies.metric_choice import choose_metric, progress


class Patience:
    """Stops the job after `patience` validations in a row without a better value of `metric`.

    A value is better if it exceeds the best one by more than `min_delta`. `larger` is None for the direction that the
    name of the metric tells. `name` is how the user has asked for it.
    """

    def __init__(
        self, patience: int, metric: str = "", *, larger: bool | None = None, min_delta: float = 0.0, name: str
    ) -> None:
        self._patience = patience
        self._metric = metric
        self._larger = larger
        self._min_delta = min_delta
        self._name = name

    def decide(self, event: PolicyEvent) -> Decision | None:
        """Stop the job if the metric has not become better for too long."""
        if not isinstance(event, ValidationDone):
            return None
        metric = choose_metric(event, self._metric, self._name)
        if not isinstance(metric, str):
            return metric
        larger = larger_is_better(metric) if self._larger is None else self._larger
        best = progress(event.series(metric), larger=larger, min_delta=self._min_delta)
        if best is None or best.waited < self._patience:
            return None
        return StopBefore(
            f"{self._name}: {metric} was best at version {best.version} ({best.value:.6g}), and not better in "
            f"{best.waited} validations up to version {event.version}",
            event.step,
        )
