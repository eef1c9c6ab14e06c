"""The interface of policies: the events that a policy gets, and the decisions that it may return.

A policy is stateless: it decides on the event alone. A restarted coordinator creates its policies again and repeats
only the event `PhaseBegan`. All policies get each event; the decision with the lowest step counts.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class PhaseBegan(msgspec.Struct, frozen=True):
    """A phase covers the steps [start, end). A policy gets this event again after a restart or a rewind."""

    number: int
    start: int
    end: int


class StepDone(msgspec.Struct, frozen=True):
    """Step `step` was committed as `version`. `values` has the weighted mean of each value that its slots logged."""

    step: int
    version: int
    values: dict[str, float]


class ValidationDone(msgspec.Struct, frozen=True):
    """The validation `name` of `version` is complete, with these `metrics`."""

    name: str
    version: int
    metrics: dict[str, float]


PolicyEvent = PhaseBegan | StepDone | ValidationDone


class StopBefore(msgspec.Struct, frozen=True):
    """End the job for `reason` before step `step`.

    Without a `step` the job ends at the next step boundary: before the lowest step that is not committed.
    """

    reason: str
    step: int | None = None


class Policy(Protocol):
    """Decides, event by event, whether the job stops."""

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """The decision on `event`, with its reason; None to let the job continue unchanged."""
