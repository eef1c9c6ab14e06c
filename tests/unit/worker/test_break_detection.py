"""A generator tells `break` from an exception only by the position of the loop's frame."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.worker import break_detection
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


def test_return_of_a_constant_counts_as_break(wrap: Wrap) -> None:
    found: list[bool] = []

    def first() -> int:
        for _ in wrap(loop(found)):
            return 5
        return 0

    assert first() == 5
    assert found == [True]


def test_break_out_of_an_inner_while_and_out_of_a_condition_is_recognised(wrap: Wrap) -> None:
    found: list[bool] = []
    for item in wrap(loop(found)):
        while True:
            break
        if str(item):
            break
    assert found == [True]


def test_break_is_recognised_while_a_debugger_traces_the_script(wrap: Wrap) -> None:
    found: list[bool] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        return trace

    def left() -> None:
        for _ in wrap(loop(found)):
            break

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        left()
    finally:
        sys.settrace(before)
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


OTHER = """
import runpy, sys
left_by_break = runpy.run_path(sys.argv[1])["left_by_break"]
found = []
def loop():
    try:
        yield from range(3)
    except GeneratorExit:
        found.append(left_by_break(sys._getframe(1)))
        raise
def returns():
    for _ in loop():
        return 5
def fails():
    for _ in loop():
        int("x")
def breaks_in_with():
    for _ in loop():
        with open(sys.argv[1]):
            break
for _ in loop():
    break
for _ in enumerate(loop()):
    break
returns()
breaks_in_with()
try:
    fails()
except ValueError:
    pass
print(found)
"""


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_other_versions_of_python_tell_the_same(version: str) -> None:
    """The instructions of a loop differ between versions."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", "pass"], capture_output=True).returncode:
        pytest.skip(f"there is no Python {version} here")
    module = break_detection.__file__
    done = subprocess.run([python, "-c", OTHER, module], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True, True, False]"
