"""All results of validation that the job has, in the order in which policies decide on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from paceline.core.coordinator.metric_names import names, series_of
from paceline.messages import ValidatorSpec


class Decided(NamedTuple):
    """A result on `version`, by the validator with that `number`. Leases of steps from `step` on wait for it.

    `step` is None for a result of `evaluate`, for which no step waits.
    """

    version: int
    number: int
    step: int | None
    values: dict[str, float]

    def is_before(self, other: Decided) -> bool:
        """Whether a decision on `other` may look at this result: in lock-step it is then there in every run."""
        if other.step is None:
            return True
        return self.version <= other.version and (self.step is None or self.step <= other.step)


class ResultBook:
    """The results that policies have decided on, and those that wait for an older one. Only `Decisions` changes it."""

    def __init__(self) -> None:
        self.decided: list[Decided] = []
        self._waiting: list[Decided] = []

    def add(self, result: Decided) -> None:
        """Take a new result; `take` returns it when its turn has come. One that is known replaces the old one."""
        at = result.version, result.number
        self.decided = [known for known in self.decided if (known.version, known.number) != at]
        self._waiting = [known for known in self._waiting if (known.version, known.number) != at]
        self._waiting.append(result)

    def take(self, is_early: Callable[[Decided], bool]) -> Decided | None:
        """The next result to decide on, the oldest first; None if all wait: `is_early` says for which one to wait."""
        ready = [result for result in self._waiting if not is_early(result)]
        if not ready:
            return None
        found = min(ready, key=lambda result: (result.version, result.number))
        self._waiting.remove(found)
        self.decided.append(found)
        return found

    def recall(self, results: Collection[Decided]) -> None:
        """Take over results on which an earlier coordinator has decided."""
        known = {(result.version, result.number) for result in self.decided}
        self.decided += [result for result in results if (result.version, result.number) not in known]

    def reopen(self, version: int) -> None:
        """Decide again on results of versions after `version`: a result on `version` is awaited again."""
        self._waiting += [result for result in self.decided if result.version > version and result.step is not None]
        self.decided = [result for result in self.decided if result.version <= version or result.step is None]

    def reset(self, version: int) -> None:
        """Forget the results on versions after `version`: the job was rewound."""
        self.decided = [result for result in self.decided if result.version <= version]
        self._waiting = [result for result in self._waiting if result.version <= version]

    # ------------------------------------------------------------ what is read

    def values(self, validators: Sequence[ValidatorSpec], metric: str) -> dict[int, float]:
        """The value of `metric` at each version that was validated; `metric` as `job.metrics` shows it."""
        shown = names(validators, [(r.number, r.version, r.values) for r in self.decided])
        found: dict[int, float] = {}
        for result in sorted(self.decided, key=lambda result: (result.version, result.number)):
            series = series_of(validators[result.number])
            for name, value in result.values.items():
                if shown[series, name] == metric:
                    found[result.version] = value
        return found

    def names(self, validators: Sequence[ValidatorSpec], series: int) -> set[str]:
        """The metrics that validations of `series` have produced, as `job.metrics` shows them."""
        shown = names(validators, [(r.number, r.version, r.values) for r in self.decided])
        return {name for (mine, _), name in shown.items() if mine == series}

    def awaits(self, version: int) -> bool:
        """Whether there is a result on `version` on which nobody has decided."""
        return any(result.version == version for result in self._waiting)
