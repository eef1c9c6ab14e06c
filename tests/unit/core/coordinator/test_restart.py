"""What a restarted coordinator restores, and what it asks for."""

from __future__ import annotations

from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.placed_job import epoch, kill, placed, replicated_job
from tests.kit.restarted_job import server_back, trained, worker_back

from paceline.core.effects import IncarnationFact
from paceline.messages import (
    Beat,
    BeatAck,
    Choose,
    PhaseOver,
    Plan,
    Receipt,
    Register,
    Stop,
)


def test_a_restarted_coordinator_uses_the_newest_placement_of_the_log() -> None:
    job = replicated_job()
    kill(job, "server-0")
    where = placed(job)
    job.restart()
    assert placed(job) == where
    assert job.core.tables.placed.failovers == 1
    assert job.core.tables.incarnation.awaited == {"server-1", "server-2"}


def test_a_server_lost_during_a_restart_is_replaced_by_its_backups() -> None:
    job = replicated_job()
    job.restart()
    where = epoch(job)
    for server in ("server-0", "server-1"):
        job.say(server, Register(job.req(), "server", server, 1, "here", "at", epoch=where, applied=0))
    effects = job.say("server-2/9", Register(job.req(), "server", "server-2", 2, "here", "at"))
    assert written(effects, IncarnationFact) == []
    assert not job.core.tables.incarnation.awaited
    assert "server-2" not in placed(job).holders
    assert "server-2/9" not in placed(job).holders, "a restarted server holds no blocks"


def test_choices_on_steps_beyond_the_end_are_forgotten() -> None:
    job = CoordinatorKit(servers=2, deterministic=False, rewinds=True).start(data_len=80).initialise()
    grant = job.lease("worker-0")
    job.seal("worker-0", grant)
    for server in job.servers:
        job.say(server, Receipt(0, 1, 0, grant.slot, grant.fence))
    job.say("worker-0", Stop(job.req(), "enough", 0, True))
    assert (job.core.state, job.core.version) == ("finished", 0)
    job.restart()
    effects = [e for server in job.servers for e in server_back(job, server)]
    assert sent(effects, Choose) == []
    assert job.core.tables.gate.steps() == []


def test_a_stop_and_the_end_of_a_phase_survive_a_restart() -> None:
    job = trained(1)
    job.say("worker-0", Stop(job.req(), "enough", 1))
    job.restart()
    assert job.core.tables.phases.phases[0].end == 2
    for server in job.servers:
        server_back(job, server)
    job.now += 1.0
    for worker in job.workers:
        worker_back(job, worker)
    job.finish_step(1)
    assert (job.core.state, job.core.version, job.core.machines.segments.stop_reason) == ("finished", 2, "enough")
    job.restart()
    assert (job.core.state, job.core.version) == ("finished", 2)
    effects = [e for server in job.servers for e in server_back(job, server)]
    assert {p.final for p in sent(effects, Plan)} == {2}
    job.now += 20.0
    worker_back(job, "worker-0")
    (over,) = sent(job.turn("worker-0"), PhaseOver)
    assert (over.version, over.finished) == (2, True)


def test_a_restarted_coordinator_answers_the_heartbeat_of_an_unregistered_server_with_a_request_to_register() -> None:

    job = trained(1)
    job.restart()
    (ack,) = sent(job.say("server-0", Beat("server-0", 0, 1, 1)), BeatAck)
    assert not ack.known
    server_back(job, "server-0")
    (ack,) = sent(job.say("server-0", Beat("server-0", 0, 1, 1)), BeatAck)
    assert ack.known


def test_a_server_that_reports_versions_beyond_the_log_causes_a_rewind() -> None:
    job = trained(2)
    job.restart()
    effects = server_back(job, "server-0", applied=9)
    assert len(written(effects, IncarnationFact)) == 1


def test_after_a_restart_a_loop_without_data_still_ends_with_the_initial_weights() -> None:
    job = CoordinatorKit(servers=2).start(data_len=0).initialise()
    job.begin("worker-0", number=1)
    job.finish_step(0, phase=1)
    assert job.core.version == 1
    job.restart()
    for server in job.servers:
        server_back(job, server, kept=(0,))
    for worker in job.workers:
        worker_back(job, worker)
    assert [over.version for over in job.over(job.turn("worker-1"))] == [0]
