"""The seam of policies: what they are told, and what they may decide."""

from __future__ import annotations

from typing import Protocol

import msgspec


class PhaseBegan(msgspec.Struct, frozen=True):
    """A phase covers the steps [start, end). It is told again when a coordinator restarts or the job is rewound."""

    number: int
    start: int
    end: int


class StepDone(msgspec.Struct, frozen=True):
    """Step `step` was committed as `version`; its slots logged these `values`."""

    step: int
    version: int
    values: dict[str, float]


class ValidationDone(msgspec.Struct, frozen=True):
    """Validation `name` of `version` has its result."""

    name: str
    version: int
    metrics: dict[str, float]


PolicyEvent = PhaseBegan | StepDone | ValidationDone


class StopBefore(msgspec.Struct, frozen=True):
    """End the job for `reason` before step `step`; None: at the next step boundary."""

    reason: str
    step: int | None = None


class Policy(Protocol):
    """Decides on events of a job."""

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        """A decision with its reason; None to let the job go on as it is."""
