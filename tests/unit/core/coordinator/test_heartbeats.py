"""Heartbeats show which messages a server has missed."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent
from tests.kit.placed_job import compute, epoch, placed, ready, replicated_job, tick

from paceline.messages import (
    Assign,
    Beat,
    Committed,
    Plan,
    Unpin,
)


def test_a_message_that_two_heartbeats_in_a_row_lack_is_sent_again() -> None:
    job = CoordinatorKit().start().initialise()
    beat = Beat("server-0", 0, 1, -1, 1)
    assert sent(job.say("server-0", beat), Committed) == [], "after one heartbeat the commit may still be on its way"
    assert [m.commit.version for m in sent(job.say("server-0", beat), Committed)] == [0]
    assert sent(job.say("server-0", Beat("server-0", 0, 1, 0, 1)), Committed) == []
    assert len(sent(job.say("server-0", Beat("server-0", 0, 0, 0, 0)), Assign)) == 1
    assert len(sent(job.say("server-0", Beat("server-0", 0, 1, 0, 0)), Plan)) == 1


def test_a_version_that_a_server_keeps_without_a_reason_is_unpinned() -> None:
    job = CoordinatorKit(slots=1).start(data_len=40).initialise()
    job.finish_step(0)
    assert [m.version for m in sent(job.say("server-0", Beat("server-0", 0, 1, 1, 1, (0, 1))), Unpin)] == [0]


def test_a_server_that_sends_heartbeats_but_receives_nothing_is_evicted() -> None:
    job = replicated_job(heartbeat_timeout_s=10.0)
    grants = compute(job, 0)
    ready(job, 0, grants)
    where = epoch(job)
    for job.now in range(1, 30):
        for server in ("server-0", "server-1", "server-2"):
            applied = 0 if server == "server-1" else 1
            job.say(server, Beat(server, 0, epoch(job) if server != "server-1" else where, applied, 1))
        for worker in job.workers:
            job.say(worker, Beat(worker))
    assert "server-1" not in placed(job).holders
    assert job.core.incarnation == 0


def test_a_server_that_receives_nothing_is_evicted_later_if_its_blocks_have_no_other_copy() -> None:
    for replicas, seconds in ((1, 10.0), (0, 30.0)):
        job = replicated_job(servers=2, replicas=replicas, heartbeat_timeout_s=10.0)
        ready(job, 0, [job.lease(w) for w in job.workers])
        lags = job.servers[0]
        while lags in job.core.tables.members.members:
            assert job.now < 100.0
            for node in job.workers:
                job.say(node, Beat(node))
            job.say(job.servers[1], Beat(job.servers[1], 0, epoch(job), job.core.version, 1))
            job.say(lags, Beat(lags, 0, 0, job.core.version, 1))
            tick(job, 0.5)
        assert seconds < job.now <= seconds + 1.0
        assert (job.core.tables.placed.failovers, job.core.tables.incarnation.rewinds) == (
            (1, 0) if replicas else (0, 1)
        )
