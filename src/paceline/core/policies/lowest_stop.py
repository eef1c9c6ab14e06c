"""Asks all policies, and makes one stop from their decisions: the one with the lowest step counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.core.policies.base import Decision, Policy, PolicyEvent, StopBefore


def ask(policies: Sequence[Policy], event: PolicyEvent) -> list[Decision]:
    """The decisions of all policies on `event`, in the order of `policies`."""
    return [decision for policy in policies if (decision := policy.decide(event)) is not None]


def lowest_stop(decisions: Iterable[Decision], boundary: int) -> tuple[str, int] | None:
    """The reason and the step of the lowest stop among `decisions`, None if none of them stops the job.

    `boundary` is the next step boundary: a decision that names no step stops there. Of two decisions for the same
    step, the one that comes first counts.
    """
    stops = [
        (found.reason, boundary if found.step is None else found.step)
        for found in decisions
        if isinstance(found, StopBefore)
    ]
    return min(stops, key=lambda stop: stop[1], default=None)
