"""Chooses the policies of a job."""

from __future__ import annotations

from paceline.config.dials import ClusterSpec
from paceline.core.policies.base import Policy
from paceline.core.policies.max_steps import MaxSteps


def default_policies(spec: ClusterSpec) -> tuple[Policy, ...]:
    """The policies that `spec` asks for."""
    return (MaxSteps(spec.max_steps),) if spec.max_steps else ()
