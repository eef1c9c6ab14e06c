"""The interface of policies: the events that a policy gets, and the decisions that it may return.

A policy is stateless: it decides on the event alone, so a restarted coordinator and a job that was rewound decide the
same again. All policies get each event. Of several stops the lowest step counts.

In lock-step every event but `Elapsed` is the same in each run of a job, and so are the decisions (rule 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class PhaseBegan(msgspec.Struct, frozen=True):
    """A phase covers the steps [start, end). A policy gets this event again after a restart or a rewind."""

    number: int
    start: int
    end: int


class BadSlot(msgspec.Struct, frozen=True):
    """A slot in which a worker found numbers that are not finite, and its samples, as indices into the data."""

    slot: int
    samples: tuple[int, ...]


class StepDone(msgspec.Struct, frozen=True):
    """Step `step` was committed as `version`. `values` has the weighted mean of each value that its slots logged.

    The job has applied `samples` samples so far, and ended `epochs` epochs. `bad` are the slots of this step in which
    numbers were not finite; they are only looked for if a policy of the job asks for it.
    """

    step: int
    version: int
    values: dict[str, float]
    epochs: int = 0
    samples: float = 0.0
    bad: tuple[BadSlot, ...] = ()


class ValidationDone(msgspec.Struct, frozen=True):
    """The validation `name` of `version` is complete, with these `metrics`.

    A decision on it takes effect before `step`; None: at the next step boundary. `earlier` are the versions and metrics
    of the same validation before, oldest first. `known` are the names of all metrics that validations have produced,
    and with `all_ran` there are no others: each periodic validation has a result.
    """

    name: str
    version: int
    metrics: dict[str, float]
    step: int | None = None
    earlier: tuple[tuple[int, Mapping[str, float]], ...] = ()
    known: tuple[str, ...] = ()
    all_ran: bool = False

    def series(self, metric: str) -> list[tuple[int, float]]:
        """The versions and values of `metric` in this validation, oldest first; the last one is of this event."""
        values = [(version, metrics[metric]) for version, metrics in self.earlier if metric in metrics]
        return [*values, (self.version, self.metrics[metric])]


class Elapsed(msgspec.Struct, frozen=True):
    """The job has trained for so many seconds, since its first version. Time in which it did not run does not count."""

    seconds: float


PolicyEvent = PhaseBegan | StepDone | ValidationDone | Elapsed


class StopBefore(msgspec.Struct, frozen=True):
    """End the job for `reason` before step `step`.

    Without a `step` the job ends at the next step boundary: before the lowest step that is not committed.
    """

    reason: str
    step: int | None = None


class ScaleRate(msgspec.Struct, frozen=True):
    """Multiply the learning rate by `factor` for `reason`, from `step` on; None: from the first step that can be."""

    reason: str
    factor: float
    step: int | None = None


class WarnUser(msgspec.Struct, frozen=True):
    """Warn the user of `text`, once for each `topic`; the job goes on unchanged."""

    topic: str
    text: str


class FailJob(msgspec.Struct, frozen=True):
    """Fail the job: what its user asked for cannot be decided."""

    reason: str


Decision = StopBefore | ScaleRate | WarnUser | FailJob


class Policy(Protocol):
    """Decides, event by event, whether the job stops or changes."""

    def decide(self, event: PolicyEvent) -> Decision | None:
        """The decision on `event`, with its reason; None to let the job continue unchanged."""
