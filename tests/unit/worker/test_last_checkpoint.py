"""A worker whose script has failed asks for a checkpoint of the last commit, and waits for it for a while."""

from __future__ import annotations

from typing import cast

import msgspec

from paceline.messages import Message, Ok, SaveNow, StatusReply, StatusRequest
from paceline.messages.status import CheckpointStatus, Status
from paceline.worker.last_checkpoint import save_last
from paceline.worker.session import Session


def at(version: int, kept: int | None = None, saving: int | None = None) -> Status:
    checkpoint = None if kept is None else CheckpointStatus(f"v{kept}", kept, kept)
    return Status(version=version, checkpoint=checkpoint, saving=saving)


class _Coordinator:
    """A session with a coordinator that reports these statuses in turn."""

    def __init__(self, *statuses: Status) -> None:
        self.statuses = list(statuses)
        self.saves = 0

    def ask(self, make: object, expect: type[Message]) -> Message:
        message = make(1)  # type: ignore[operator]
        if isinstance(message, SaveNow):
            self.saves += 1
            return Ok(1)
        assert isinstance(message, StatusRequest)
        return StatusReply(1, msgspec.json.encode(self.statuses.pop(0)))


def _saves(*statuses: Status) -> int:
    """How often the worker asked for a checkpoint. It must return after the last of `statuses`."""
    coordinator = _Coordinator(*statuses)
    save_last(cast(Session, coordinator), sleep=lambda seconds: None)
    assert coordinator.statuses == []
    return coordinator.saves


def test_it_waits_until_the_last_version_is_saved() -> None:
    assert _saves(at(7, 4), at(7, 4, saving=7), at(8, 4, saving=7), at(8, 7)) == 1


def test_it_asks_after_an_older_checkpoint_that_is_under_way() -> None:
    assert _saves(at(7, saving=5), at(7, 5), at(7, 5, saving=7), at(7, 7)) == 1


def test_it_does_not_wait_for_a_checkpoint_that_nobody_makes() -> None:
    assert _saves(at(7), at(7)) == 1, "the job makes no checkpoints, or could not write this one"
    assert _saves(at(0)) == 0, "nothing is committed"
    assert _saves(at(7, 7)) == 0, "there is one"
