"""Makes one decision from those of all policies: the stop with the lowest step counts."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.policies.base import Policy, PolicyEvent


def lowest_stop(policies: Sequence[Policy], event: PolicyEvent, boundary: int) -> tuple[str, int] | None:
    """Ask all policies; return the reason and the step of the lowest stop, None if no policy stops the job.

    `boundary` is the next step boundary: a decision that names no step stops there. Of two decisions for the same
    step, the decision of the policy that comes first in `policies` counts.
    """
    decisions = [d for d in (policy.decide(event) for policy in policies) if d is not None]
    stops = [(d.reason, boundary if d.step is None else d.step) for d in decisions]
    return min(stops, key=lambda stop: stop[1], default=None)
