"""The newest results of validation, as the script reads them from `job.metrics`."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import MissingMetricError
from paceline.types import Measured


class Metrics(dict[str, float]):
    """The value of each metric, by name. A snapshot: it does not change when there are newer results.

    `step` is the step of the newest validation in it, -1 if there is none: it is larger than before exactly if a value
    is new. `steps` has the step of each metric; metrics of different validations may be of different steps.
    """

    def __init__(self, measured: Mapping[str, Measured], missing: str = "") -> None:
        """`missing` says why there are no metrics, if there are none."""
        super().__init__({name: found.value for name, found in measured.items()})
        self.steps = {name: found.step for name, found in measured.items()}
        self.step = max(self.steps.values(), default=-1)
        self._missing = missing

    def __missing__(self, name: str) -> float:
        """Raise an error that says which metrics there are, or why there are none."""
        why = f"there are {', '.join(sorted(self))}" if self else self._missing
        raise MissingMetricError(str(name), why)


def metrics_at(step: int, measured: Mapping[str, Measured], *, declared: int) -> Metrics:
    """What a script sees at `step`, which has `declared` validations."""
    if not declared:
        return Metrics({}, "no validation was declared (@job.validate(data, every=...) before the loop)")
    return Metrics(
        measured,
        f"no validation is seen yet at step {step}. In a loop a result is there `every` steps after the step that was "
        "validated: use job.metrics.get(name), or ask whether job.metrics.step >= 0",
    )
