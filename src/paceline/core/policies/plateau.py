"""Lower the learning rate when a metric of validation does not become better."""

from __future__ import annotations

from paceline.config.policies import larger_is_better
from paceline.core.policies.base import Decision, PolicyEvent, ScaleRate, ValidationDone
from paceline.core.policies.metric_choice import choose_metric, progress


class LowerRateOnPlateau:
    """Multiplies the learning rate by `factor` after each `patience` validations in a row without a better value.

    The other arguments are those of `Patience`.
    """

    def __init__(
        self,
        patience: int,
        factor: float,
        metric: str = "",
        *,
        larger: bool | None = None,
        min_delta: float = 0.0,
        name: str,
    ) -> None:
        self._patience = patience
        self._factor = factor
        self._metric = metric
        self._larger = larger
        self._min_delta = min_delta
        self._name = name

    def decide(self, event: PolicyEvent) -> Decision | None:
        """Lower the rate if the metric has not become better since the last time that it was lowered."""
        if not isinstance(event, ValidationDone):
            return None
        metric = choose_metric(event, self._metric, self._name)
        if not isinstance(metric, str):
            return metric
        larger = larger_is_better(metric) if self._larger is None else self._larger
        best = progress(event.series(metric), larger=larger, min_delta=self._min_delta)
        if best is None or best.waited == 0 or best.waited % self._patience:
            return None
        return ScaleRate(
            f"{self._name}: {metric} not better than {best.value:.6g} (version {best.version}) up to version "
            f"{event.version}",
            self._factor,
            event.step,
        )
