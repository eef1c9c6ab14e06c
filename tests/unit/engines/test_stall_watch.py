"""A stall is told once, with the stack of the late process if that runs here."""

from __future__ import annotations

from paceline.engines.actions import Dump, Tell
from paceline.engines.stall_watch import StallWatch
from paceline.messages.status import Status

STALLED = Status(step=812, stall="step 812 waits for slot 3 on worker-2, host b, for 5.1 s", late_process="worker-2")


def test_a_stall_is_told_once_and_again_after_a_minute() -> None:
    watch = StallWatch()
    assert list(watch.see(Status(step=812), ["worker-2"], 0.0)) == []
    (told, asked) = watch.see(STALLED, ["worker-2"], 10.0)
    assert told == Tell(
        "no progress: step 812 waits for slot 3 on worker-2, host b, for 5.1 s; its stack follows, and is in its log: "
        "worker-2.log",
        warning=True,
    )
    assert asked == Dump("worker-2")
    assert list(watch.see(STALLED, ["worker-2"], 60.0)) == []
    assert len(list(watch.see(STALLED, ["worker-2"], 70.0))) == 2


def test_a_new_stall_after_progress_is_told_at_once_and_others_are_not_asked_for_a_stack() -> None:
    watch = StallWatch()
    assert len(list(watch.see(STALLED, [], 10.0))) == 1  # a worker of `paceline join` is no child of this launcher
    assert list(watch.see(Status(step=813), [], 11.0)) == []
    assert len(list(watch.see(STALLED, [], 12.0))) == 1
