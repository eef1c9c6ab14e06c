"""How long an interrupted run waits for its last checkpoint."""

from __future__ import annotations

from paceline.engines.last_checkpoint import PATIENCE_S, LastCheckpoint, Next
from paceline.messages.status import CheckpointStatus, FailureStatus, Status


def at(version: int, kept: int | None = None, *, saving: int | None = None, warning: str = "") -> Status:
    checkpoint = None if kept is None else CheckpointStatus(f"v{kept}", kept, kept)
    return Status(version=version, checkpoint=checkpoint, saving=saving, warning=warning)


def begun(status: Status) -> LastCheckpoint:
    last = LastCheckpoint(enabled=True)
    assert last.begin(status, 100.0) is Next.ASK
    return last


def test_a_checkpoint_is_awaited_until_it_is_complete() -> None:
    last = begun(at(7))
    assert last.see(None, 100.1) is Next.WAIT
    assert last.see(at(8, saving=7), 100.2) is Next.WAIT
    assert last.problem, "a second signal now leaves it incomplete"
    assert last.see(at(9, kept=7), 100.3) is Next.OVER
    assert last.problem == ""


def test_no_checkpoint_is_made_without_a_new_commit() -> None:
    last = LastCheckpoint(enabled=True)
    assert last.begin(at(7, kept=7), 100.0) is Next.OVER
    assert last.problem == ""


def test_no_checkpoint_is_made_if_there_is_none_to_make() -> None:
    for enabled, status, why in (
        (False, at(7), "--checkpoint-every is 0"),
        (True, None, "no step was committed"),
        (True, at(0), "no step was committed"),
        (True, Status(version=7, failure=FailureStatus("script", "x")), "the job had failed"),
    ):
        last = LastCheckpoint(enabled=enabled)
        assert last.begin(status, 100.0) is Next.OVER
        assert last.problem == why


def test_the_wait_has_an_end() -> None:
    last = begun(at(7))
    assert last.see(at(8, saving=7), 100.0 + PATIENCE_S - 0.1) is Next.WAIT
    assert last.see(at(8, saving=7), 100.0 + PATIENCE_S) is Next.OVER
    assert last.problem == "it was not complete within 5 s"


def test_a_checkpoint_that_was_under_way_is_followed_by_one_of_the_last_step() -> None:
    last = begun(at(7, saving=4))
    assert last.see(at(7, saving=4), 100.1) is Next.WAIT
    assert last.see(at(7, kept=4), 100.2) is Next.ASK


def test_a_checkpoint_that_cannot_be_written_is_not_awaited() -> None:
    last = begun(at(7))
    assert last.see(at(7, warning="no checkpoint of version 7: disk full"), 100.1) is Next.OVER
    assert last.problem == "no checkpoint of version 7: disk full"


def test_a_coordinator_that_ends_is_not_awaited() -> None:
    last = begun(at(7))
    assert last.lost() is Next.OVER
    assert last.problem == "the coordinator ended"
