"""`job.save` of a job that has done the save before: it is skipped, and the user hears of a file that is gone."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import cast

import pytest
from torch import nn

from paceline.messages import Claim, ClaimDone, Claimed, Message, Ok, SavedModel, Warn
from paceline.worker.save_model import save_model
from paceline.worker.saves import Saves
from paceline.worker.session import Session


class _Answers:
    """A session whose coordinator knows of one save that was done before."""

    def __init__(self, saved: SavedModel | None) -> None:
        self.saved = saved
        self.asked: list[Message] = []

    def ask(self, make: object, expect: type[Message]) -> Message:
        message = make(1)  # type: ignore[operator]
        self.asked.append(message)
        return Claimed(1, self.saved is None, self.saved) if isinstance(message, Claim) else Ok(1)


def _skipped(file: Path, digest: str, host: str = "") -> list[str]:
    """The warnings of a save to `file` that was done before, with the weights of `digest`."""
    session = _Answers(SavedModel(str(file), digest, host or socket.gethostname()))
    Saves(cast(Session, session)).save(nn.Linear(2, 1), file)
    assert not any(isinstance(message, ClaimDone) for message in session.asked)
    return [message.text for message in session.asked if isinstance(message, Warn)]


def _written(file: Path) -> str:
    digest = save_model(nn.Linear(2, 1), file)
    os.utime(file, (1e9, 1e9))
    return digest


def test_the_worker_that_writes_reports_file_and_digest(tmp_path: Path) -> None:
    session, file, model = _Answers(None), tmp_path / "best.safetensors", nn.Linear(2, 1)
    Saves(cast(Session, session)).save(model, file)
    (done,) = (message for message in session.asked if isinstance(message, ClaimDone))
    assert done.saved is not None
    assert _skipped(file, done.saved.digest) == []
    assert done.saved.file == str(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (text,) = _skipped(tmp_path / "best.safetensors", "aa")
    assert text.startswith(f"{tmp_path}/best.safetensors is missing. ")
    assert "is skipped" in text


@pytest.mark.parametrize("content", ["model", "text"])
def test_a_file_with_other_weights_is_named(content: str, tmp_path: Path) -> None:
    file = tmp_path / "best.safetensors"
    if content == "model":
        _written(file)
    else:
        file.write_text("not a model")
        os.utime(file, (1e9, 1e9))
    (text,) = _skipped(file, "aa")
    assert "best.safetensors has other weights than this job saved there" in text


def test_the_file_of_the_save_is_silent(tmp_path: Path) -> None:
    file = tmp_path / "best.safetensors"
    assert _skipped(file, _written(file)) == []


def test_a_file_that_was_written_since_the_start_of_this_worker_is_silent(tmp_path: Path) -> None:
    """Another worker may be further, and may have saved again."""
    file = tmp_path / "best.safetensors"
    _written(file)
    os.utime(file, (4e9, 4e9))
    assert _skipped(file, "aa") == []


def test_a_file_on_another_host_is_not_looked_for(tmp_path: Path) -> None:
    assert _skipped(tmp_path / "best.safetensors", "aa", host="elsewhere") == []
