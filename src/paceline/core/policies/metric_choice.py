"""Which metric of a validation a policy looks at, and how good the newest value is beside the earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import NamedTuple

from paceline.core.policies.base import FailJob, ValidationDone, WarnUser


def choose_metric(event: ValidationDone, metric: str, name: str) -> str | WarnUser | FailJob | None:
    """The metric of `event` that the policy called `name` looks at; None if this validation does not have it.

    `metric` is the one that the user named, "" for the only one that there is. A metric that no validation produces is
    a warning; several ones, of which the user named none, fail the job.
    """
    if metric in event.metrics:
        return metric
    if not event.all_ran:
        return None
    produced = ", ".join(sorted(event.known)) or "nothing"
    if metric:
        if metric in event.known:
            return None
        text = f"{name} has no effect: no validation produces {metric}, they produce {produced}"
        return WarnUser(f"no metric for {name}", text)
    if len(event.known) > 1:
        return FailJob(
            f"{name}: validations produce {produced}: name the one that counts, with --best METRIC:max or METRIC:min, "
            "or with metric= in the script"
        )
    return next((only for only in event.known if only in event.metrics), None)


class Progress(NamedTuple):
    """The best value so far, its version, and how many validations since then were not better."""

    value: float
    version: int
    waited: int


def progress(series: Iterable[tuple[int, float]], *, larger: bool, min_delta: float) -> Progress | None:
    """Look for the best value in `series`, the versions and values of a metric, oldest first; None if all are NaN.

    A value is better if it is larger (or smaller) than the best one by more than `min_delta`. A NaN is never better.
    """
    best: Progress | None = None
    for version, value in series:
        if best is None:
            best = None if isnan(value) else Progress(value, version, 0)
        elif (value - best.value if larger else best.value - value) > min_delta:
            best = Progress(value, version, 0)
        else:
            best = best._replace(waited=best.waited + 1)
    return best
