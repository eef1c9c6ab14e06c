from __future__ import annotations

import pytest

from paceline.data.files.retries import TRIES, may_pass, with_retries
from paceline.errors import DataUnreachableError


class Answer(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status, "https://key:secret@host/x?signature=secret")
        self.status = status


def failing(errors: list[Exception]) -> tuple[list[float], object]:
    pauses: list[float] = []
    left = list(errors)

    def operation() -> str:
        if left:
            raise left.pop(0)
        return "content"

    return pauses, with_retries("file.csv", operation, sleep=pauses.append)


def test_what_may_pass_is_tried_again_with_growing_pauses() -> None:
    pauses, result = failing([Answer(503), TimeoutError(), ConnectionResetError(104, "reset")])
    assert result == "content"
    assert pauses == sorted(pauses)
    assert len(pauses) == 3


def test_after_all_tries_the_file_is_named_and_no_secret_is() -> None:
    with pytest.raises(DataUnreachableError, match=r"file\.csv cannot be read: the server answered 503") as found:
        failing([Answer(503)] * TRIES)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(Answer(403), "credentials"), (Answer(404), "no such file"), (PermissionError(), "credentials")],
)
def test_what_does_not_pass_is_not_tried_again(error: Exception, remedy: str) -> None:
    with pytest.raises(DataUnreachableError, match=remedy):
        failing([error, error])


def test_an_error_of_the_program_is_not_tried_again() -> None:
    assert not may_pass(ValueError("wrong"))
    with pytest.raises(ValueError, match="wrong"):
        failing([ValueError("wrong")])
