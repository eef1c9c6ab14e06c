"""The dispatcher: requests of members, and of processes that are not members."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent

from paceline.messages import (
    Abort,
    Beat,
    Failed,
    Ok,
    Ready,
    Refused,
    Register,
)


def test_a_failed_job_sends_one_abort_to_every_member_and_one_to_each_later_request() -> None:
    job = CoordinatorKit().start()
    effects = job.say("worker-0", Failed(job.req(), "script", "Traceback ..."))
    assert len(sent(effects, Ok, "worker-0")) == 1
    assert sorted(e.to for e in effects if sent([e], Abort)) == ["server-0", "worker-0", "worker-1"]  # type: ignore[union-attr]
    assert [m.trace for m in sent(job.turn("worker-1"), Abort)] == ["Traceback ..."]
    assert sent(job.say("server-0", Beat("server-0")), Abort, "server-0")
    assert sent(job.say("new", Register(1, "worker", "new", 1, "here")), Abort)
    assert job.say("worker-1", Failed(job.req(), "script", "another"))[1:] == []


def test_a_process_that_is_not_a_member_is_told_to_register() -> None:
    job = CoordinatorKit().start()
    assert [m.rule for m in sent(job.turn("stranger"), Refused)] == ["unknown"]
    assert job.say("stranger", Ready(0, 1, 0, (), 0, 0, ())) == []
