"""How targets, times and metrics are written."""

from __future__ import annotations

import pytest

from paceline.config.policies import (
    PolicySpec,
    Target,
    larger_is_better,
    parse_best,
    parse_plateau,
    parse_target,
    parse_time,
    time_in_words,
)
from paceline.errors import UsageError


def test_a_colon_is_the_same_as_the_comparison_that_the_metric_wants() -> None:
    assert parse_target("accuracy:0.9") == parse_target("accuracy >= 0.9") == Target("accuracy", 0.9, True)
    assert parse_target("loss:0.1") == parse_target("loss<=0.1") == Target("loss", 0.1, False)
    assert parse_target("check-1.loss<0.1") == Target("check-1.loss", 0.1, False, strict=True)


@pytest.mark.parametrize("text", ["accuracy", "accuracy>=nan", "accuracy=0.9", ">=0.9", "accuracy>=high", ""])
def test_what_is_no_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"such as 'accuracy>=0\.9' or loss:0\.1"):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200.0), ("1h30m", 5400.0), ("45s", 45.0), ("90", 90.0), ("0.5m", 30.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds
    assert parse_time(time_in_words(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1h", "2 hours", "h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--max-time must be"):
        parse_time(text)


def test_the_direction_of_a_metric_follows_from_its_words_unless_it_is_given() -> None:
    assert [larger_is_better(name) for name in ("accuracy", "val_loss", "loss", "error-rate", "glossy", "terror")] == [
        True,
        False,
        False,
        False,
        True,
        True,
    ]
    assert parse_best("accuracy") == ("accuracy", True)
    assert parse_best("loss") == ("loss", False)
    assert parse_best("loss:max") == ("loss", True)
    with pytest.raises(UsageError, match="accuracy:max or loss:min, not 'loss:low'"):
        parse_best("loss:low")


def test_a_plateau_has_a_patience_and_a_factor() -> None:
    assert (parse_plateau("3"), parse_plateau("3:0.1")) == ((3, 0.5), (3, 0.1))
    for text in ("0", "3:1", "3:", "x", "3:0"):
        with pytest.raises(UsageError, match="--plateau must be"):
            parse_plateau(text)


def test_settings_that_cannot_be_are_refused_by_their_option_or_call() -> None:
    with pytest.raises(UsageError, match=r"--min-delta must be 0 or more, not -1"):
        PolicySpec(min_delta=-1).check()
    with pytest.raises(UsageError, match=r"job\.on_plateau\(\): factor must be between 0 and 1, not 2"):
        PolicySpec(source="job.on_plateau()", plateau=1, factor=2.0).check()
    with pytest.raises(UsageError, match=r"--on-nan must be warn or stop, not 'ski'"):
        PolicySpec(on_nan="ski").check()
