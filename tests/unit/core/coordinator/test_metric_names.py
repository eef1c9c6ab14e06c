"""Which results of validation a script sees, and under which names."""

from __future__ import annotations

from paceline.core.coordinator.metric_names import Result, named, seen_at, series_of
from paceline.messages import ValidatorSpec
from paceline.types import Measured


def validator(number: int, name: str = "accuracy", every: int = 0, series: int | None = None) -> ValidatorSpec:
    return ValidatorSpec(number, name, every, 10, 5, number if series is None else series)


def values(validators: list[ValidatorSpec], results: list[Result]) -> dict[str, float]:
    return {name: measured.value for name, measured in named(validators, results).items()}


def test_calls_of_one_series_share_their_names_and_the_newest_counts() -> None:
    validators = [validator(number, series=0) for number in range(50)]
    results: list[Result] = [(number, 10 * number, {"accuracy": number / 100}) for number in range(50)]
    assert named(validators, results) == {"accuracy": Measured(0.49, 490)}
    assert named(validators, results[::-1]) == {"accuracy": Measured(0.49, 490)}, "the order of results does not matter"


def test_a_second_evaluation_of_one_version_counts() -> None:
    assert values([validator(0), validator(1, series=0)], [(1, 7, {"a": 2.0}), (0, 7, {"a": 1.0})]) == {"a": 2.0}


def test_series_that_have_one_metric_stay_apart_in_every_epoch() -> None:
    validators = [validator(0), validator(1), validator(2, series=0), validator(3, series=1)]
    first: list[Result] = [(0, 5, {"accuracy": 0.1}), (1, 5, {"accuracy": 0.2})]
    second: list[Result] = [(2, 9, {"accuracy": 0.3}), (3, 9, {"accuracy": 0.4})]
    assert values(validators, first) == {"accuracy": 0.1, "accuracy-1.accuracy": 0.2}
    assert values(validators, first + second) == {"accuracy": 0.3, "accuracy-1.accuracy": 0.4}
    assert values(validators, [*first, second[1]]) == {"accuracy": 0.1, "accuracy-1.accuracy": 0.4}


def test_a_name_keeps_its_meaning_while_results_come_in() -> None:
    """The validation that runs more often has its first result first, whichever was declared first."""
    validators = [validator(0, "slow", every=200), validator(1, "fast", every=100)]
    assert values(validators, [(1, 100, {"loss": 1.0})]) == {"loss": 1.0}
    both: list[Result] = [(1, 200, {"loss": 2.0}), (0, 200, {"loss": 9.0})]
    assert values(validators, both) == {"loss": 2.0, "slow-0.loss": 9.0}


def test_a_call_of_evaluate_does_not_take_the_name_of_a_periodic_validation() -> None:
    validators = [validator(0, "by_hand"), validator(1, "periodic", every=10)]
    results: list[Result] = [(0, 10, {"loss": 1.0}), (1, 10, {"loss": 2.0})]
    assert values(validators, results) == {"loss": 2.0, "by_hand-0.loss": 1.0}


def test_metrics_that_only_one_call_of_a_series_returned_stay() -> None:
    validators = [validator(0), validator(1, series=0)]
    assert values(validators, [(0, 5, {"a": 1.0, "b": 2.0}), (1, 6, {"a": 3.0})]) == {"a": 3.0, "b": 2.0}


def test_a_turn_sees_results_before_its_loop_and_those_that_are_every_steps_old() -> None:
    validators = [validator(0, "v", every=10), validator(1, "by_hand")]
    results: list[Result] = [(0, version, {"v": float(version)}) for version in (10, 20, 25, 30)]
    results.append((1, 25, {"hand": 1.0}))
    seen = [seen_at(validators, results, step, 0) for step in (19, 20, 29, 30, 34, 35, 39, 40)]
    assert [found["v"].step if found else None for found in seen] == [None, 10, 10, 20, 20, 25, 25, 30]
    assert all("hand" not in found for found in seen), "evaluated after this loop"
    after = seen_at(validators, results, 25, 25)
    assert {name: found.step for name, found in after.items()} == {"v": 25, "hand": 25}


def test_a_validator_of_an_older_log_is_a_series_of_its_own() -> None:
    assert series_of(ValidatorSpec(3, "v", 0, 10, 5)) == 3
