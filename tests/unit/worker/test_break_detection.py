"""A generator tells `break` from an exception only by the position of the loop's frame."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.worker.break_detection import left_by_break

Wrap = Callable[[Any], Any]


class Bar:
    """A progress bar."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.items
        finally:
            pass


def one_by_one(items: Any) -> Iterator[Any]:
    for item in items:  # noqa: UP028 - the other way of writing it
        yield item


WRAPS: dict[str, Wrap] = {
    "nothing": lambda items: items,
    "enumerate": enumerate,
    "map": lambda items: map(str, items),
    "zip": lambda items: zip(items, "abc", strict=True),
    "generator": one_by_one,
    "progress bar": Bar,
}


@pytest.fixture(params=list(WRAPS))
def wrap(request: pytest.FixtureRequest) -> Wrap:
    return WRAPS[request.param]


def loop(found: list[bool]) -> Iterator[int]:
    try:
        yield from range(3)
    except GeneratorExit:
        found.append(left_by_break(sys._getframe(1)))
        raise


def test_break_is_recognised(wrap: Wrap) -> None:
    found: list[bool] = []
    for _ in wrap(loop(found)):
        break
    assert found == [True]


def test_break_out_of_with_and_try_is_recognised(wrap: Wrap) -> None:
    found: list[bool] = []
    for _ in wrap(loop(found)):
        with pytest.MonkeyPatch.context():
            try:
                break
            finally:
                len(found)
    assert found == [True]


def test_return_out_of_the_loop_counts_as_break(wrap: Wrap) -> None:
    found: list[bool] = []

    def first() -> Any:
        for item in wrap(loop(found)):
            return item
        return None

    assert first() is not None
    assert found == [True]


def test_an_exception_of_a_call_in_the_loop_is_no_break(wrap: Wrap) -> None:
    found: list[bool] = []

    def fail() -> None:
        for _ in wrap(loop(found)):
            int("x")

    with pytest.raises(ValueError, match="invalid literal"):
        fail()
    assert found == [False]


def test_a_raise_statement_in_the_loop_is_no_break(wrap: Wrap) -> None:
    found: list[bool] = []

    def fail() -> None:
        for _ in wrap(loop(found)):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert found == [False]


def test_the_end_of_the_loop_is_no_break(wrap: Wrap) -> None:
    found: list[bool] = []
    for _ in wrap(loop(found)):
        pass
    assert found == []


def test_a_loop_without_a_frame_is_not_left_by_break() -> None:
    assert left_by_break(None) is False
