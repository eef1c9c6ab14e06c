"""What `job.metrics` shows: values, their steps, and an error that helps if there is none."""

from __future__ import annotations

import json
import pickle

import pytest

from paceline.errors import MissingMetricError
from paceline.types import Measured
from paceline.worker.metrics import Metrics


def test_metrics_are_a_dict_with_the_step_of_the_newest_validation() -> None:
    metrics = Metrics({"accuracy": Measured(0.9, 400), "loss": Measured(0.1, 600)})
    assert metrics == {"accuracy": 0.9, "loss": 0.1}
    assert (metrics.step, metrics.steps) == (600, {"accuracy": 400, "loss": 600})
    assert json.loads(json.dumps(metrics)) == metrics


def test_before_the_first_validation_a_value_is_an_error_that_says_so() -> None:
    metrics = Metrics({}, "no validation is seen yet at step 3")
    assert (metrics.step, metrics.get("accuracy"), "accuracy" in metrics) == (-1, None, False)
    with pytest.raises(
        MissingMetricError, match=r"^job\.metrics has no 'accuracy': no validation is seen yet at step 3$"
    ):
        metrics["accuracy"]
    with pytest.raises(KeyError):
        metrics["accuracy"]


def test_a_wrong_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(MissingMetricError, match="has no 'acc': there are accuracy, loss") as raised:
        Metrics({"loss": Measured(0.1, 6), "accuracy": Measured(0.9, 6)})["acc"]
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
