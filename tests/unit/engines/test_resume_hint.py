"""Where a resume begins, in words."""

from __future__ import annotations

from pathlib import Path

from paceline.engines.resume_hint import ResumeHint
from paceline.messages.status import CheckpointStatus, Status

HINT = ResumeHint(Path("runs/a"), "30s")
RESUMED = ResumeHint(Path("runs/a"), "30s", "i0000-v0000000320")
KEPT = Status(checkpoint=CheckpointStatus("i0000-v0000000231", 231, 231))


def test_the_hint_names_the_step_of_the_newest_checkpoint() -> None:
    assert HINT.after_end(KEPT) == "`paceline run --resume runs/a` continues at step 231"
    assert RESUMED.after_end(KEPT) == "`paceline run --resume runs/a` continues at step 231"


def test_the_hint_says_why_the_last_steps_are_computed_again() -> None:
    told = HINT.after_end(KEPT, "it was not complete within 5 s")
    assert told.endswith("step 231; the steps after it are computed again, because it was not complete within 5 s")


def test_the_hint_says_that_a_run_without_a_checkpoint_starts_at_step_0() -> None:
    begins = "`paceline run --resume runs/a` starts at step 0: no checkpoint was made, because "
    assert HINT.after_end(Status()) == begins + "none was due (--checkpoint-every 30s)"
    assert HINT.after_end(None, "no step was committed") == begins + "no step was committed"


def test_a_resumed_run_that_made_no_checkpoint_begins_where_it_began() -> None:
    told = "`paceline run --resume runs/a` continues from checkpoint i0000-v0000000320"
    assert RESUMED.after_end(None, "no step was committed") == told


def test_an_error_of_the_script_is_to_be_fixed_first() -> None:
    again = "`paceline run --resume runs/a --allow-changes` continues at"
    assert HINT.after_error(KEPT) == f"fix the script or its data, then {again} step 231; or start again"
    assert (
        RESUMED.after_error(None)
        == f"fix the script or its data, then {again} checkpoint i0000-v0000000320; or start again"
    )
    assert HINT.after_error(Status()) == "fix the script or its data and start again: no checkpoint was made"
