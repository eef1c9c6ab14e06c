"""Which results of validation a script sees, and under which names.

Calls of `evaluate` with the same function and data are one series: its newest result counts. In a loop in lock-step a
script sees a result only `every` steps after the version that was validated, so what it sees depends on the step alone
(rule 8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paceline.messages import ValidatorSpec
from paceline.types import Measured

Result = tuple[int, int, Mapping[str, float]]
"""The result of a validation: the number of the validator, the version, and the value of each metric."""


def series_of(validator: ValidatorSpec) -> int:
    """The number of the first validator with the same function and data."""
    return validator.number if validator.series < 0 else validator.series


def names(validators: Sequence[ValidatorSpec], results: Iterable[Result]) -> dict[tuple[int, str], str]:
    """The name that each metric of each series is shown by.

    If several series have a metric of one name, the series that is validated most often has the name; then the one that
    was declared first, and those of `evaluate` last. The others have ``function-series.name``. So a name keeps its
    meaning while results come in.
    """
    metrics: dict[int, dict[str, None]] = {}
    for number, _, values in results:
        metrics.setdefault(series_of(validators[number]), {}).update(dict.fromkeys(values))
    shown: dict[tuple[int, str], str] = {}
    taken: set[str] = set()
    for series in sorted(metrics, key=lambda s: (not validators[s].every, validators[s].every, s)):
        for name in metrics[series]:
            shown[series, name] = f"{validators[series].name}-{series}.{name}" if name in taken else name
        taken.update(metrics[series])
    return shown


def named(validators: Sequence[ValidatorSpec], results: Iterable[Result]) -> dict[str, Measured]:
    """The newest value of each metric in `results` under the name that it is shown by, with the step of its version."""
    ordered = sorted(results, key=lambda result: (result[1], result[0]))
    newest: dict[tuple[int, str], Measured] = {}
    for number, version, values in ordered:
        for name, value in values.items():
            newest[series_of(validators[number]), name] = Measured(value, version)
    return {shown: newest[key] for key, shown in names(validators, ordered).items()}


def seen_at(
    validators: Sequence[ValidatorSpec], results: Iterable[Result], step: int, start: int
) -> dict[str, Measured]:
    """The metrics that a turn of `step` sees, in a loop whose first step is `start`.

    These are the results before the loop, and those of versions that are at least `every` steps old.
    """
    return named(validators, (r for r in results if r[1] <= start or is_seen(validators[r[0]], r[1], step)))


def is_seen(validator: ValidatorSpec, version: int, step: int) -> bool:
    """Whether a turn of `step` sees a result on `version`, which was validated in the same loop."""
    return validator.every > 0 and version + validator.every <= step
