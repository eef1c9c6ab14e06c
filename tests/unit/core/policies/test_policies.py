"""Each policy alone: the event, and the decision with its reason."""

from __future__ import annotations

from math import inf, nan

import pytest

from paceline.config.policies import PolicySpec, parse_target
from paceline.core.policies.base import (
    BadSlot,
    Elapsed,
    FailJob,
    PolicyEvent,
    ScaleRate,
    StepDone,
    StopBefore,
    ValidationDone,
    WarnUser,
)
from paceline.core.policies.best_versions import best_versions
from paceline.core.policies.max_epochs import MaxEpochs
from paceline.core.policies.max_samples import MaxSamples
from paceline.core.policies.max_time import MaxTime
from paceline.core.policies.metric_choice import Progress, progress
from paceline.core.policies.not_finite import StopOnNan
from paceline.core.policies.patience import Patience
from paceline.core.policies.plateau import LowerRateOnPlateau
from paceline.core.policies.registry import policies_of
from paceline.core.policies.target import ReachTarget


def done(*values: float, metric: str = "accuracy", also: tuple[str, ...] = (), all_ran: bool = True) -> ValidationDone:
    """The last of some validations, one every 10 versions, whose decision takes effect 10 steps later."""
    earlier = tuple((10 * (n + 1), {metric: value}) for n, value in enumerate(values[:-1]))
    version = 10 * len(values)
    known = (metric, *also)
    return ValidationDone("check", version, {metric: values[-1]}, version + 10, earlier, known, all_ran)


def stop(event: PolicyEvent, *, policy: object) -> StopBefore | None:
    found = policy.decide(event)  # type: ignore[attr-defined]
    assert found is None or isinstance(found, StopBefore)
    return found


def test_epochs_samples_and_time_stop_at_the_next_step_boundary() -> None:
    step = StepDone(7, 8, {}, epochs=2, samples=512.0)
    assert stop(step, policy=MaxEpochs(2)) == StopBefore("--max-epochs 2")
    assert stop(step, policy=MaxEpochs(3)) is None
    assert stop(step, policy=MaxSamples(512)) == StopBefore("--max-samples 512: 512 are applied")
    assert stop(step, policy=MaxSamples(513)) is None
    assert stop(Elapsed(5400.0), policy=MaxTime(5400.0)) == StopBefore("--max-time 1h30m")
    assert stop(Elapsed(5399.9), policy=MaxTime(5400.0)) is None


@pytest.mark.parametrize(
    ("target", "value", "reached"),
    [
        ("accuracy>=0.9", 0.9, True),
        ("accuracy>0.9", 0.9, False),
        ("accuracy:0.9", 0.89, False),
        ("accuracy:0.9", 0.91, True),
        ("loss:0.1", 0.11, False),
        ("loss:0.1", 0.09, True),
        ("val_error<0.1", 0.1, False),
        ("accuracy>=0.9", nan, False),
        ("loss<=0.1", nan, False),
    ],
)
def test_a_target_is_reached_by_its_comparison_and_never_by_nan(target: str, value: float, reached: bool) -> None:
    wanted = parse_target(target)
    found = stop(done(value, metric=wanted.metric), policy=ReachTarget(wanted, f"--target {target}"))
    assert (found is not None) is reached
    if found is not None:
        assert found.step == 20
        assert found.reason == f"--target {target} is reached: {wanted.metric} is {value:.6g} at version 10"


def test_a_target_on_a_metric_that_no_validation_produces_is_a_warning_once_all_have_run() -> None:
    policy = ReachTarget(parse_target("top5>=0.9"), "--target top5>=0.9")
    assert policy.decide(done(0.5, all_ran=False)) is None
    found = policy.decide(done(0.5, also=("loss",)))
    assert isinstance(found, WarnUser)
    assert found.text == "--target top5>=0.9 has no effect: no validation produces top5, they produce accuracy, loss"
    assert policy.decide(done(0.5, also=("top5",))) is None  # another validation has it


def test_patience_counts_validations_without_a_better_value() -> None:
    policy = Patience(2, name="--patience 2")
    assert stop(done(0.5, 0.6, 0.6), policy=policy) is None
    found = stop(done(0.5, 0.6, 0.6, 0.55), policy=policy)
    assert found is not None
    assert found.step == 50
    assert found.reason == (
        "--patience 2: accuracy was best at version 20 (0.6), and not better in 2 validations up to version 40"
    )
    assert stop(done(0.5, 0.6, nan, nan), policy=policy) is not None
    assert stop(done(0.6, 0.5, 0.7), policy=policy) is None


def test_a_smaller_loss_is_better_and_min_delta_counts() -> None:
    assert stop(done(0.5, 0.6, 0.7, metric="val_loss"), policy=Patience(2, name="")) is not None
    assert stop(done(0.5, 0.4, 0.3, metric="val_loss"), policy=Patience(2, name="")) is None
    assert stop(done(0.5, 0.45, 0.41, metric="val_loss"), policy=Patience(2, min_delta=0.1, name="")) is not None
    assert stop(done(0.5, 0.4, 0.3, metric="perplexity"), policy=Patience(2, name="")) is not None
    assert stop(done(0.5, 0.4, 0.3, metric="perplexity"), policy=Patience(2, larger=False, name="")) is None


def test_of_several_metrics_the_user_must_name_one() -> None:
    found = Patience(2, name="--patience 2").decide(done(0.5, also=("loss",)))
    assert isinstance(found, FailJob)
    assert found.reason.startswith("--patience 2: validations produce accuracy, loss: name the one that counts")
    assert Patience(2, name="--patience 2").decide(done(0.5, also=("loss",), all_ran=False)) is None
    assert Patience(2, "accuracy", name="--patience 2").decide(done(0.5, also=("loss",))) is None


def test_a_plateau_lowers_the_rate_after_each_patience() -> None:
    policy = LowerRateOnPlateau(2, 0.1, name="--plateau 2")
    decided = [policy.decide(done(*([0.9, 0.8, 0.8, 0.8, 0.8, 0.8][: n + 1]))) for n in range(6)]
    assert [isinstance(found, ScaleRate) for found in decided] == [False, False, True, False, True, False]
    assert decided[2] == ScaleRate(
        "--plateau 2: accuracy not better than 0.9 (version 10) up to version 30", factor=0.1, step=40
    )


def test_numbers_that_are_not_finite_stop_the_job_and_name_the_samples() -> None:
    policy = StopOnNan()
    bad = (BadSlot(1, (4, 7)), BadSlot(2, tuple(range(20))))
    found = stop(StepDone(3, 4, {"loss": inf}, bad=bad), policy=policy)
    assert found is not None
    assert found.step is None
    assert found.reason.startswith("--on-nan stop: loss is inf at step 3 (slot 1: samples 4, 7; slot 2: samples 0, 1, ")
    assert found.reason.endswith("14, 15, …)")
    found = stop(StepDone(3, 4, {"loss": 1.0}, bad=bad[:1]), policy=policy)
    assert found == StopBefore("--on-nan stop: a gradient is not finite at step 3 (slot 1: samples 4, 7)")
    assert stop(StepDone(3, 4, {"loss": nan}), policy=policy) is None  # no slot: an empty step
    assert stop(done(0.5, nan), policy=policy) == StopBefore("--on-nan stop: accuracy is nan at version 20", 30)


def test_the_best_versions_are_ranked_and_ties_go_to_the_earlier_one() -> None:
    values = {10: 0.5, 20: 0.7, 30: 0.7, 40: nan, 50: 0.6}
    assert best_versions(values, larger=True) == [20, 30, 50, 10]
    assert best_versions(values, larger=False) == [10, 50, 20, 30]


def test_progress_skips_what_is_nan_at_the_beginning() -> None:
    assert progress([(1, nan)], larger=True, min_delta=0.0) is None
    assert progress([(1, nan), (2, 0.5), (3, nan)], larger=True, min_delta=0.0) == Progress(0.5, 2, 1)


def test_a_spec_without_settings_has_no_policy_and_each_setting_has_one() -> None:
    assert policies_of(PolicySpec()) == ()
    spec = PolicySpec(
        max_epochs=1, max_samples=1, max_time_s=1.0, on_nan="stop", target="a>1", patience=1, plateau=1, factor=0.1
    )
    assert [type(policy) for policy in policies_of(spec)] == [
        MaxEpochs,
        MaxSamples,
        MaxTime,
        StopOnNan,
        ReachTarget,
        Patience,
        LowerRateOnPlateau,
    ]
