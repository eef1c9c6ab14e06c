"""Chooses the policies of a job."""

from __future__ import annotations

from paceline.config.dials import ClusterSpec
from paceline.config.policies import STOP, PolicySpec, parse_target
from paceline.core.policies.base import Policy
from paceline.core.policies.max_epochs import MaxEpochs
from paceline.core.policies.max_samples import MaxSamples
from paceline.core.policies.max_steps import MaxSteps
from paceline.core.policies.max_time import MaxTime
from paceline.core.policies.not_finite import StopOnNan
from paceline.core.policies.patience import Patience
from paceline.core.policies.plateau import LowerRateOnPlateau
from paceline.core.policies.target import ReachTarget


def default_policies(spec: ClusterSpec) -> tuple[Policy, ...]:
    """The policies that `spec` asks for."""
    steps: tuple[Policy, ...] = (MaxSteps(spec.max_steps),) if spec.max_steps else ()
    return (*steps, *policies_of(spec.policies))


def policies_of(spec: PolicySpec) -> tuple[Policy, ...]:
    """The policies that one `PolicySpec` asks for."""
    found: list[Policy] = []
    if spec.max_epochs:
        found.append(MaxEpochs(spec.max_epochs))
    if spec.max_samples:
        found.append(MaxSamples(spec.max_samples))
    if spec.max_time_s:
        found.append(MaxTime(spec.max_time_s))
    if spec.on_nan == STOP:
        found.append(StopOnNan())
    if spec.target:
        name = spec.source or f"--target {spec.target}"
        found.append(ReachTarget(parse_target(spec.target), name))
    if spec.patience:
        name = spec.source or f"--patience {spec.patience}"
        found.append(Patience(spec.patience, spec.metric, larger=spec.larger, min_delta=spec.min_delta, name=name))
    if spec.plateau:
        name = spec.source or f"--plateau {spec.plateau}"
        found.append(
            LowerRateOnPlateau(
                spec.plateau, spec.factor, spec.metric, larger=spec.larger, min_delta=spec.min_delta, name=name
            )
        )
    return tuple(found)
