"""Schedules of modes, and the dials that `paceline set` and `job.set` take."""

from __future__ import annotations

import pytest

from paceline.config.live import (
    change_of,
    in_words,
    parse_change,
    parse_lr,
    parse_schedule,
    parse_slots,
    schedule_name,
)
from paceline.errors import UsageError
from paceline.types import DialChange


def test_a_schedule_says_until_which_step_each_mode_holds() -> None:
    rows = parse_schedule("bsp@500, ssp:4@2000, allreduce")
    assert [(row.start, row.mode.name) for row in rows] == [(0, "bsp"), (500, "ssp:4"), (2000, "allreduce")]
    assert [row.mode.in_group for row in rows] == [False, False, True]
    assert schedule_name("bsp@500, ssp:04@2000,asp") == "bsp@500,ssp:4@2000,asp"
    assert schedule_name("ssp:04") == "ssp:4"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bsp@500,ssp:4@500,asp", "must increase"),
        ("bsp@500,ssp:4@20,asp", "must increase"),
        ("bsp@0,asp", "must increase"),
        ("bsp,asp", "until which step"),
        ("bsp@x,asp", "until which step"),
        ("bsp@5,asp@9", "has no step"),
        ("bsp@5,", "not known"),
        ("", "not known"),
    ],
)
def test_a_malformed_schedule_is_refused_with_the_remedy(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_schedule(text)


def test_several_dials_are_one_change() -> None:
    change = parse_change(["mode=ssp:4", "slots=8", "lr=x0.5", "checkpoint_every=500"])
    assert change == DialChange("ssp:4", 8, 0.0, 0.5, 500, 0.0)
    assert in_words(change) == "mode ssp:4, slots 8, lr x0.5, checkpoint_every 500"
    assert in_words(parse_change(["lr=0.01", "checkpoint_every=2.5s"])) == "lr 0.01, checkpoint_every 2.5s"
    assert in_words(parse_change(["checkpoint_every=0"])) == "checkpoint_every 0"
    assert in_words(DialChange()) == ""


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["mode"],
        ["mode="],
        ["speed=3"],
        ["mode=bsp", "mode=asp"],
        ["mode=bsp@5,asp"],
        ["mode=all-reduce"],
        ["slots=0"],
        ["slots=-3"],
        ["slots=many"],
        ["lr=0"],
        ["lr=-0.1"],
        ["lr=x0"],
        ["lr=nan"],
        ["lr=inf"],
        ["lr=fast"],
        ["checkpoint_every=often"],
    ],
)
def test_a_change_that_cannot_be_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_change(words)


def test_values_of_the_script_are_read_as_those_of_the_command() -> None:
    assert change_of({"lr": "0.01", "slots": "3"}) == parse_change(["lr=0.01", "slots=3"])
    assert parse_lr("x2") == (0.0, 2.0)


def test_slots_are_a_number_or_auto() -> None:
    assert (parse_slots("4"), parse_slots(4), parse_slots("auto")) == (4, 4, None)
    for wrong in ("0", "-1", "x", True):
        with pytest.raises(UsageError, match="at least 1"):
            parse_slots(wrong)
