"""What a segment says of the learning rate, applied to the hyper-parameters that a worker reports."""

from __future__ import annotations

from tests.kit.core import segment

from paceline.types import Hyper
from paceline.worker.hyperparameters import LearningRates

HYPER: Hyper = ({"lr": 0.1, "momentum": 0.9}, {"lr": 0.02, "momentum": 0.0})


def test_without_a_change_the_numbers_are_those_of_the_script() -> None:
    rates = LearningRates()
    assert rates.of(HYPER, segment()) is HYPER
    assert rates.of(HYPER, None) is HYPER


def test_a_factor_multiplies_what_the_scheduler_gives_and_a_rate_replaces_it() -> None:
    rates = LearningRates()
    half = rates.of(HYPER, segment(lr_scale=0.5))
    assert [group["lr"] for group in half] == [0.05, 0.01]
    assert [group["momentum"] for group in half] == [0.9, 0.0]
    later: Hyper = ({"lr": 0.2, "momentum": 0.9}, {"lr": 0.02, "momentum": 0.0})
    assert [group["lr"] for group in rates.of(later, segment(lr_scale=0.5))] == [0.1, 0.01]
    assert [group["lr"] for group in rates.of(later, segment(lr=0.3))] == [0.3, 0.3]


def test_the_same_object_is_returned_until_something_changes() -> None:
    rates, of = LearningRates(), segment(lr_scale=0.5)
    assert rates.of(HYPER, of) is rates.of(HYPER, of)
    assert rates.of(HYPER, segment(lr_scale=0.25)) is not rates.of(HYPER, of)
