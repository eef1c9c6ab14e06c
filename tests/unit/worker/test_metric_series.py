"""Which calls of `validate` and `evaluate` share the names of their metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from paceline.data.source import DatasetSource
from paceline.worker.metric_series import Metric, MetricSeries

Values = Mapping[str, Any]


def accuracy(model: Any, x: Any) -> Values:
    return {"accuracy": 1.0}


def top(k: int) -> Metric:
    def metric(model: Any, x: Any) -> Values:
        return {"top": float(k)}

    return metric


class Measure:
    def score(self, model: Any, x: Any) -> Values:
        return {"score": 1.0}


def samples(count: int = 10) -> TensorDataset:
    return TensorDataset(torch.zeros(count))


class Script:
    """Counts the calls of a script, as `Validators` does."""

    def __init__(self) -> None:
        self.series = MetricSeries()
        self.number = -1
        self.loops = -1

    def loop(self) -> None:
        self.loops += 1

    def evaluate(self, metric: Metric, data: Dataset[Any], *, periodic: bool = False) -> int:
        self.number += 1
        source = DatasetSource(data, len(data))  # type: ignore[arg-type]
        return self.series.find(metric, source, self.number, periodic=periodic, period=self.loops)


@pytest.fixture
def script() -> Script:
    return Script()


def test_one_function_on_one_data_set_is_one_series_for_ever(script: Script) -> None:
    data = samples()
    found = set()
    for _ in range(100):
        script.loop()
        found.add(script.evaluate(accuracy, data))
        found.add(script.evaluate(accuracy, data))
    assert found == {0}


def test_two_data_sets_of_one_length_stay_apart_in_every_epoch(script: Script) -> None:
    val, test = samples(), samples()
    for _ in range(3):
        script.loop()
        assert (script.evaluate(accuracy, val), script.evaluate(accuracy, test)) == (0, 1)
    script.loop()
    assert script.evaluate(accuracy, test) == 1, "also if the other one is left out"


def test_data_sets_that_are_made_anew_in_each_epoch_stay_the_same_series(script: Script) -> None:
    for _ in range(3):
        script.loop()
        assert script.evaluate(accuracy, Subset(samples(), range(4))) == 0
        assert script.evaluate(accuracy, Subset(samples(), range(4))) == 1
        assert script.evaluate(accuracy, Subset(samples(), range(5))) == 2, "another length"


def test_a_last_evaluation_on_other_data_is_another_series(script: Script) -> None:
    """The parts of a random_split may have the same class and length."""
    val, test = Subset(samples(), range(5)), Subset(samples(), range(5))
    for _ in range(3):
        script.loop()
        script.evaluate(accuracy, val)
    assert script.evaluate(accuracy, test) == 3


def test_functions_that_are_made_anew_in_each_epoch_stay_the_same_series(script: Script) -> None:
    data = samples()
    for _ in range(3):
        script.loop()
        assert [script.evaluate(top(k), data) for k in (1, 5)] == [0, 1]


def test_different_lambdas_on_one_data_set_are_different_series(script: Script) -> None:
    data = samples()
    for _ in range(2):
        script.loop()
        one = script.evaluate(lambda model, x: {"a": 1.0}, data)
        other = script.evaluate(lambda model, x: {"b": 1.0}, data)
        assert (one, other) == (0, 1)


@pytest.mark.parametrize("make", [lambda: partial(accuracy, None), lambda: Measure().score])
def test_a_partial_or_a_method_is_found_again(make: Callable[[], Metric], script: Script) -> None:
    metric, data = make(), samples()
    script.loop()
    assert script.evaluate(metric, data) == 0
    assert script.evaluate(metric, data) == 0
    script.loop()
    assert script.evaluate(make(), data) == 0


def test_a_method_of_another_object_is_another_series(script: Script) -> None:
    data, one, other = samples(), Measure(), Measure()
    found = [script.evaluate(metric, data) for metric in (one.score, other.score, one.score, other.score)]
    assert found == [0, 1, 0, 1]


def test_evaluate_continues_the_series_of_a_periodic_validation_only_on_its_own_data(script: Script) -> None:
    val, test = samples(), samples()
    assert script.evaluate(accuracy, val, periodic=True) == 0
    script.loop()
    assert script.evaluate(accuracy, val) == 0
    assert script.evaluate(accuracy, test) == 2
    script.loop()
    assert script.evaluate(accuracy, samples()) == 2
    assert script.evaluate(accuracy, val) == 0
