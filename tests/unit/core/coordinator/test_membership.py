"""Members join, are lost, leave, or are refused."""

from __future__ import annotations

import msgspec
from tests.kit.core import TENSORS, CoordinatorKit, sent, written
from tests.kit.restarted_job import trained

from paceline.core.effects import (
    MemberFact,
    Send,
)
from paceline.messages import (
    Abort,
    Beat,
    BeatAck,
    JobArgs,
    Refused,
    Register,
    Revoke,
)


def test_a_silent_worker_is_evicted_and_may_return() -> None:
    job = CoordinatorKit().start().initialise()
    grant = job.lease("worker-0")
    job.now = 9.0
    for node in ("worker-1", "server-0"):
        job.say(node, Beat(node))
    assert sent(job.core.tick(10.5), Revoke) == []
    assert "worker-0" not in job.core.tables.members.members
    assert grant.fence not in job.core.tables.leases.live
    (ack,) = sent(job.say("beats", Beat("worker-0")), BeatAck)
    assert not ack.known
    assert [m.rule for m in sent(job.turn("worker-0"), Refused)] == ["unknown"]
    job.join("worker-0")
    assert job.lease("worker-0").step == 0


def test_a_lost_server_ends_the_job_unless_it_holds_nothing() -> None:
    small = (TENSORS[1],)
    job = CoordinatorKit(servers=2, tensors=small).start().initialise_with("server-0")
    (fact,) = written(job.core.lost("server-1", "killed", 0.0), MemberFact)
    assert (fact.name, fact.change) == ("server-1", "lost")
    (abort, *_) = sent(job.core.lost("server-0", "killed", 0.0), Abort)
    assert (abort.kind, "server-0 is lost" in abort.reason) == ("lost", True)


def test_exactly_one_live_worker_leads() -> None:
    job = CoordinatorKit().start().initialise()
    assert job.lease("worker-0").lead
    assert not job.lease("worker-1").lead
    job.core.lost("worker-0", "killed", job.now)
    assert job.lease("worker-1").lead


def test_a_disagreement_of_the_first_workers_fails_the_job_even_if_one_began_earlier() -> None:
    job = CoordinatorKit()
    job.say("server-0", Register(job.req(), "server", "server-0", 1, "here", "there"))
    job.join("worker-0")
    job.begin("worker-0")
    job.initialise()  # before worker-1 registers
    job.join("worker-1")
    effects = job.begin("worker-1", data_len=13)
    assert {s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Abort)} >= {"worker-0", "worker-1"}
    assert job.core.failure is not None


def test_a_disagreeing_worker_beyond_the_first_ones_is_refused_without_failing_the_job() -> None:
    job = CoordinatorKit().start().initialise()
    job.join("worker-2")
    effects = job.begin("worker-2", data_len=13)
    assert [s.to for s in effects if isinstance(s, Send) and isinstance(s.message, Abort)] == ["worker-2"]
    other = Register(job.req(), "worker", "worker-3", 1, "here", None, JobArgs(8, "bsp", 2, 1))
    assert [s.to for s in job.say("worker-3", other) if isinstance(s, Send)] == ["worker-3"]
    assert job.core.failure is None
    assert job.core.failure is None
    again = Register(job.req(), "worker", "worker-1", 2, "here", None, JobArgs(8, "bsp", 2, 1))
    assert [s.to for s in job.say("worker-1/2", again) if isinstance(s, Send)] == ["worker-1/2"], (
        "worker-1 is a new process, and is refused alone"
    )
    assert job.core.failure is None


def test_a_late_worker_that_disagrees_is_refused_without_failing_the_job() -> None:
    job = trained(1)
    other = msgspec.structs.replace(job.job, seed=99)
    effects = job.say("late", Register(job.req(), "worker", "worker-j1", 5, "here", None, other))
    assert sent(effects, Abort, "late")[0].kind == "script"
    assert job.core.failure is None
