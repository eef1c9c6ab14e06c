"""Requests to end a run: what the supervisor's thread gets, how often, and how the run then ends."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from paceline.engines.interruption import interrupted_by
from paceline.engines.sigterm import Terminated
from paceline.engines.stop_requests import Stopped, StopRequests
from paceline.errors import RunError, RunStoppedError


def raised(requests: StopRequests) -> Iterator[type[KeyboardInterrupt]]:
    while True:
        try:
            requests.check()
        except KeyboardInterrupt as error:
            yield type(error)
        else:
            return


def test_without_a_request_nothing_is_raised() -> None:
    assert list(raised(StopRequests())) == []


def test_a_request_is_raised_once_also_if_it_is_repeated() -> None:
    requests = StopRequests()
    requests.ask()
    requests.ask(KeyboardInterrupt)
    assert list(raised(requests)) == [Stopped]
    requests.ask()
    assert list(raised(requests)) == []


@pytest.mark.parametrize("before", [True, False])
def test_at_once_is_a_second_request(before: bool) -> None:
    requests = StopRequests()
    if before:
        requests.ask()
    requests.ask(Terminated, at_once=True)
    assert list(raised(requests)) == [Stopped if before else Terminated, Terminated]
    requests.ask(at_once=True)
    assert list(raised(requests)) == []


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (Stopped(), (130, "stopped")),
        (KeyboardInterrupt(), (130, "interrupted")),
        (Terminated(), (143, "terminated by SIGTERM")),
    ],
)
def test_each_kind_has_its_exit_code_and_reason(error: KeyboardInterrupt, end: tuple[int, str]) -> None:
    assert interrupted_by(error) == end


def test_the_error_of_a_run_ends_with_the_traceback_and_can_be_pickled() -> None:
    error = RunError(1, "worker-0: it broke", "Traceback\nValueError: it broke\n", "mend it")
    assert str(error) == "worker-0: it broke (mend it)\n\nTraceback\nValueError: it broke"
    again = pickle.loads(pickle.dumps(RunStoppedError(130, "stopped", "", "resume it")))
    assert (type(again), str(again), again.code) == (RunStoppedError, "stopped (resume it)", 130)
