"""The seam of policies: one new class, given to the coordinator's core, stops a job for its own reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kit.core import CoordinatorKit, sent, written

from paceline.core.coordinator.dispatch import CoordinatorCore
from paceline.core.effects import Effect, StopFact
from paceline.core.policies.base import PhaseBegan, Policy, PolicyEvent, StepDone, StopBefore, ValidationDone
from paceline.core.policies.max_steps import MaxSteps
from paceline.core.policies.registry import default_policies
from paceline.messages import Declare, EvalGrant, PhaseOver, ValidatorSpec
from paceline.types import Sums


class StopAtVersion:
    """A dummy policy: stops the job once a version is committed, and records its calls."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.told: list[PolicyEvent] = []

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        self.told.append(event)
        if isinstance(event, StepDone) and event.version == self.version:
            return StopBefore(f"version {self.version} is enough")
        return None


class StopEveryPhase:
    """A dummy: ends each phase that begins at the next step boundary."""

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        return StopBefore(f"phase {event.number} is not needed") if isinstance(event, PhaseBegan) else None


class StopAtAccuracy:
    """A dummy policy: stops the job at the first validation that reaches the target."""

    def decide(self, event: PolicyEvent) -> StopBefore | None:
        if isinstance(event, ValidationDone) and event.metrics.get("acc", 0.0) >= 0.5:
            return StopBefore("accurate enough")
        return None


def job_with(*policies: Policy, mode: str = "bsp") -> CoordinatorKit:
    job = CoordinatorKit(workers=1, slots=1, mode=mode)
    job.core = CoordinatorCore(job.spec, 1, policies=policies)
    job.start()
    return job.initialise()


def test_a_job_stops_for_the_reason_of_a_new_policy() -> None:
    policy = StopAtVersion(2)
    job = job_with(policy)
    effects: list[Effect] = []
    for step in range(6):
        effects += job.finish_step(step)
    assert (job.core.state, job.core.version) == ("finished", 2)
    assert job.core.machines.segments.stop_reason == "version 2 is enough"
    (fact,) = written(effects, StopFact)
    assert (fact.reason, fact.step) == ("version 2 is enough", 2)
    (over,) = sent(job.turn("worker-0"), PhaseOver)
    assert (over.version, over.finished) == (2, True)
    assert policy.told[0] == PhaseBegan(0, 0, 6)
    assert [e.version for e in policy.told if isinstance(e, StepDone)] == [1, 2]


def test_the_stop_of_a_policy_survives_a_restart_of_the_coordinator() -> None:
    job = job_with(StopAtVersion(2))
    for step in range(2):
        job.finish_step(step)
    job.restart()
    assert (job.core.state, job.core.machines.segments.stop_reason) == ("finished", "version 2 is enough")


def test_a_policy_can_stop_the_job_by_a_result_of_validation() -> None:
    job = job_with(StopAtAccuracy())
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "accuracy", 1, 2, 2)))
    job.finish_step(0)
    (grant,) = sent(job.turn("worker-0", declared=1), EvalGrant)
    effects = job.evaluated("worker-0", grant, {"acc": Sums(1.0, 2.0)}, declared=1)
    (fact,) = written(effects, StopFact)
    assert fact.reason == "accurate enough"
    assert job.core.state == "finished"


def test_the_decision_with_the_lowest_step_counts_in_any_order_of_policies() -> None:
    for policies in ((MaxSteps(4), MaxSteps(2)), (MaxSteps(2), MaxSteps(4))):
        job = job_with(*policies)
        for step in range(6):
            job.finish_step(step)
        assert (job.core.version, job.core.machines.segments.stop_reason) == (2, "--max-steps 2")


def test_a_later_decision_for_a_lower_step_counts_and_outlives_the_coordinator() -> None:
    job = job_with(MaxSteps(5), StopAtVersion(2))
    assert job.core.machines.segments.stop_reason == "--max-steps 5"
    for step in range(6):
        job.finish_step(step)
    for _ in range(2):
        assert (job.core.version, job.core.machines.segments.stop_reason) == (2, "version 2 is enough")
        assert job.core.state == "finished"
        job.restart()


def test_a_later_decision_for_a_higher_step_does_not_count() -> None:
    job = job_with(MaxSteps(3), StopAtVersion(9))
    for step in range(6):
        job.finish_step(step)
    assert (job.core.version, job.core.machines.segments.stop_reason) == (3, "--max-steps 3")


def test_a_phase_that_must_stop_at_the_next_step_boundary_ends_before_its_first_step() -> None:
    job = job_with(StopEveryPhase())
    assert (job.core.state, job.core.version) == ("finished", 0)
    assert job.core.machines.segments.stop_reason == "phase 0 is not needed"


def test_a_policy_gets_the_values_that_the_step_itself_logged() -> None:
    policy = StopAtVersion(9)
    job = job_with(policy)
    for step, logs in enumerate(({"loss": 2.0, "first": 1.0}, {"loss": 1.0})):
        job.finish_step(step, logs=logs)
    assert [e.values for e in policy.told if isinstance(e, StepDone)] == [{"loss": 2.0, "first": 1.0}, {"loss": 1.0}]


@pytest.mark.parametrize(("max_steps", "kinds"), [(0, []), (7, [MaxSteps])])
def test_the_registry_has_the_policies_that_the_spec_asks_for(max_steps: int, kinds: list[type]) -> None:
    spec = replace(CoordinatorKit().spec, max_steps=max_steps)
    assert [type(policy) for policy in default_policies(spec)] == kinds
