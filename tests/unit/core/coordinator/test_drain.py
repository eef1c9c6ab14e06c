"""A host that drains: its servers give up their blocks, its workers get no leases, and the fact is durable."""

from __future__ import annotations

from typing import Any

from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.placed_job import placed, ready, replicated_job, settle

from paceline.coordinator.placement_report import drained_hosts
from paceline.core.effects import DrainFact, Effect, IncarnationFact
from paceline.messages import Declare, Drain, EvalGrant, Exited, Grant, Ok, PhaseOver, Refused, Revoke, ValidatorSpec

HOSTS = {"server-0": "a", "server-1": "b", "server-2": "c", "worker-0": "a", "worker-1": "b"}


def job_on_hosts(**changes: Any) -> CoordinatorKit:
    return replicated_job(hosts=HOSTS, **changes)


def drain(job: CoordinatorKit, host: str, *, undo: bool = False) -> list[Effect]:
    return job.say("engine", Drain(job.req(), host, undo))


def test_the_blocks_of_a_draining_host_move_without_a_rewind_and_the_host_is_empty_then() -> None:
    job = job_on_hosts()
    effects = drain(job, "c")
    assert sent(effects, Ok, "engine")
    assert written(effects, DrainFact) == [DrainFact("c")]
    assert drained_hosts(job.core.tables) == ()
    settle(job)
    assert "server-2" not in placed(job).holders
    assert drained_hosts(job.core.tables) == ("c",)
    assert (job.core.incarnation, job.core.tables.incarnation.rewinds) == (0, 0)


def test_a_worker_of_a_draining_host_gets_no_lease_and_others_get_its_slot() -> None:
    job = job_on_hosts()
    drain(job, "a")
    assert sent(job.turn("worker-0"), Grant) == []
    grants = compute_alone(job)
    ready(job, 0, grants)
    assert job.core.version == 1


def compute_alone(job: CoordinatorKit) -> list[Grant]:
    """Let worker-1 compute both slots of step 0."""
    grants = []
    for _ in range(2):
        grant = job.lease("worker-1")
        job.seal("worker-1", grant)
        job.core.tables.leases.abandon_open("worker-1")
        grants.append(grant)
    return grants


def test_a_lease_that_a_worker_holds_ends_before_its_host_is_empty() -> None:
    job = job_on_hosts()
    grants = [job.lease(worker) for worker in job.workers]
    drain(job, "b")
    settle(job)
    assert "server-1" not in placed(job).holders
    again = [job.lease(worker) for worker in job.workers]
    assert [g.slot for g in again] == [g.slot for g in grants], "each worker seals again what it computed before"
    assert drained_hosts(job.core.tables) == ()
    for worker, grant in zip(job.workers, again, strict=True):
        job.seal(worker, grant)
    ready(job, 0, again)
    assert drained_hosts(job.core.tables) == ("b",)


def test_a_worker_of_a_draining_host_leaves_its_loop_when_the_job_is_over() -> None:
    job = job_on_hosts(data_len=4)
    drain(job, "a")
    job.turn("worker-0")
    effects = ready(job, 0, compute_alone(job))
    assert sent(effects, PhaseOver, "worker-0") or sent(job.turn("worker-0"), PhaseOver, "worker-0")


def test_undo_gives_blocks_and_leases_again() -> None:
    job = job_on_hosts()
    drain(job, "a")
    settle(job)
    job.turn("worker-0")
    effects = drain(job, "a", undo=True)
    assert sent(effects, Grant, "worker-0")
    assert written(effects, DrainFact) == [DrainFact("a", True)]
    settle(job)
    assert "server-0" in placed(job).holders


def test_a_new_process_on_a_draining_host_gets_no_blocks() -> None:
    job = job_on_hosts()
    drain(job, "c")
    settle(job)
    job.say("engine", Exited(job.req(), "server-2", 1, 0))
    job.hosts["server-2/new"] = "c"
    job.say("server-2/new", job.registration("server", "server-2/new", name="server-2", start=2))
    settle(job)
    assert "server-2/new" not in placed(job).holders


def test_a_restarted_coordinator_and_a_rewind_keep_the_drain() -> None:
    job = job_on_hosts(replicas=0)
    drain(job, "c")
    job.restart()
    assert job.core.tables.members.draining_hosts == {"c"}
    for server in job.servers:
        job.say(server, job.registration("server", server, epoch=1, applied=0))
    effects = job.say("engine", Exited(job.req(), "server-0", 1, -9))
    assert written(effects, IncarnationFact)
    assert job.core.tables.members.draining_hosts == {"c"}
    job.restart(resume="")
    assert job.core.tables.members.draining_hosts == set(), "a resumed run may have other hosts"
    job.restart()
    assert job.core.tables.members.draining_hosts == set()


def test_a_rewind_places_the_blocks_on_the_hosts_that_do_not_drain() -> None:
    job = job_on_hosts(replicas=0)
    drain(job, "c")
    job.say("engine", Exited(job.req(), "server-0", 1, -9))
    assert job.core.placement is None, "the job waits for the server that is lost"
    job.hosts["server-0/new"] = "a"
    job.say("server-0/new", job.registration("server", "server-0/new", name="server-0", start=2))
    assert set(placed(job).holders) == {"server-0/new", "server-1"}


def test_an_unknown_host_is_refused_and_the_known_ones_are_named() -> None:
    (refused,) = sent(drain(job_on_hosts(), "d"), Refused)
    assert refused.rule == "host"
    assert "'d'" in refused.detail
    assert "a, b, c" in refused.detail


def test_the_last_host_that_is_not_being_emptied_is_not_emptied() -> None:
    job = job_on_hosts()
    assert sent(drain(job, "a"), Ok)
    assert sent(drain(job, "b"), Ok)
    (refused,) = sent(drain(job, "c"), Refused)
    assert (refused.rule, "c is the only host" in refused.detail) == ("host", True)
    assert "add a host first" in refused.detail
    assert job.core.tables.members.draining_hosts == {"a", "b"}
    others = job.say("engine", Drain(job.req(), "c", others=True))
    assert sent(others, Ok), "the launcher has another host, which carries no roles yet"
    assert job.core.tables.members.draining_hosts == {"a", "b", "c"}


def test_blocks_keep_their_copies_until_enough_servers_are_on_other_hosts() -> None:
    job = job_on_hosts()
    drain(job, "a")
    settle(job)
    before = placed(job)
    drain(job, "b")
    settle(job)
    assert [set(placed(job).copies(b)) for b in range(len(before.owners))] == [{"server-1", "server-2"}] * len(
        before.owners
    )
    job.say("server-9/1", job.registration("server", "server-9/1", name="server-9", start=1))
    settle(job)
    assert set(placed(job).holders) == {"server-2", "server-9/1"}


def test_a_worker_of_a_draining_host_gets_no_validation_slot() -> None:
    job = job_on_hosts()
    job.say("worker-0", Declare(job.req(), ValidatorSpec(0, "accuracy", 1, 8, 4)))
    job.say("worker-1", Declare(job.req(), ValidatorSpec(0, "accuracy", 1, 8, 4)))
    drain(job, "a")
    ready(job, 0, compute_alone(job))
    assert sent(job.turn("worker-0", declared=1), EvalGrant) == []
    assert sent(job.turn("worker-1", declared=1), EvalGrant)


def test_a_slot_that_comes_back_is_not_left_to_a_worker_of_a_draining_host() -> None:
    """The worker with a lease of the next step computes it: the one that waits may not."""
    job = replicated_job(hosts=HOSTS | {"worker-2": "c"}, workers=3, slots=1)
    drain(job, "a")
    job.turn("worker-0")
    assert job.lease("worker-1").step == 0
    early = job.lease("worker-2")
    assert early.step == 1
    effects = job.say("engine", Exited(job.req(), "worker-1", 1, -9))
    assert [r.fence for r in sent(effects, Revoke, "worker-2")] == [early.fence]
