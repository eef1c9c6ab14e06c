"""Errors of torch that say that a loader process died are found, wherever the script wraps them."""

from __future__ import annotations

import pytest

from paceline.worker.script_errors import loader_death

KILLED = "DataLoader worker (pid 71) is killed by signal: Killed. "


@pytest.mark.parametrize("text", [KILLED, "DataLoader worker (pid(s) 71, 72) exited unexpectedly"])
def test_the_death_of_a_loader_process_is_found(text: str) -> None:
    assert loader_death(RuntimeError(text)) == text.strip()


def test_it_is_found_behind_an_exception_of_the_script() -> None:
    wrapped = ValueError("no batch")
    wrapped.__cause__ = RuntimeError(KILLED)
    assert loader_death(wrapped) == KILLED.strip()


@pytest.mark.parametrize(
    "error",
    [
        None,
        RuntimeError("DataLoader timed out after 5 seconds"),
        RuntimeError("Caught ValueError in DataLoader worker process 0."),
        ValueError(KILLED),
    ],
)
def test_other_errors_are_those_of_the_script(error: BaseException | None) -> None:
    assert loader_death(error) is None
