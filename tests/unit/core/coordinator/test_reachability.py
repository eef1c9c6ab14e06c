"""Reports of unreachable peers, and when a server is evicted for them."""

from __future__ import annotations

import pytest
from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.placed_job import epoch, kill, placed, replicated_job, tick

from paceline.core.effects import Effect, IncarnationFact, PlacementFact
from paceline.core.worker.reachability import ServerReachability
from paceline.messages import (
    Beat,
    Copied,
    Probe,
    Reachable,
    Register,
    Unreachable,
)
from paceline.types import Kind, NodeId, TensorSpec


def beats(job: CoordinatorKit, seconds: float, *silent: NodeId) -> list[Effect]:
    """Let time pass; all members but the `silent` send heartbeats."""
    effects: list[Effect] = []
    for _ in range(round(2 * seconds)):
        for server in (s for s in job.servers if s not in silent):
            effects += job.say(server, Beat(server, 0, epoch(job), job.core.version, 1))
        effects += tick(job, 0.5)
    return effects


def cut_off(job: CoordinatorKit, seconds: int, server: NodeId, *workers: NodeId) -> list[Effect]:
    """Let time pass while these `workers` report that they cannot reach `server`."""
    effects: list[Effect] = []
    for _ in range(seconds):
        for worker in workers:
            effects += job.say(worker, Unreachable(server, 5.0, epoch(job)))
        effects += tick(job)
    return effects


def live(job: CoordinatorKit, seconds: int, *cut: NodeId) -> None:
    """Let time pass: evicted servers return, the workers in `cut` reach no server, and the others compute."""
    watches = {worker: ServerReachability(3.0) for worker in cut}
    for _ in range(2 * seconds):
        job.now += 0.5
        if job.core.failure is not None:
            return
        for server in job.servers:
            if server not in job.core.tables.members.members:
                job.say(server, Register(job.req(), "server", server, 1, "here", "there"))
            job.say(server, Beat(server, 0, epoch(job), job.core.version, 1))
        for worker in job.workers:
            job.say(worker, Beat(worker))
        for worker, watch in watches.items():
            for message in watch.tick(job.now, job.core.tables.placed.owners, epoch(job)):
                job.say(worker, message)
        tick(job, 0.0)
        for server, blocks in placed(job).joining:
            for source in sorted({placed(job).owners[b] for b in blocks}):
                job.say(server, Copied(0, epoch(job), source))


def test_a_primary_that_most_workers_cannot_reach_is_evicted() -> None:
    job = replicated_job(workers=3)
    peer = placed(job).owners[0]
    for job.now in (0.0, 1.0):
        job.say("worker-0", Unreachable(peer, 3.0, epoch(job)))
    assert peer in job.core.tables.placed.owners
    job.say("worker-1", Unreachable(peer, 3.0, epoch(job)))
    assert peer in job.core.tables.placed.owners, "more reports may follow, so the coordinator waits"
    job.now = 2.0
    job.say("worker-1", Unreachable(peer, 3.0, epoch(job)))
    assert peer not in placed(job).holders
    assert job.core.incarnation == 0


def test_a_silent_server_is_evicted_soon_if_its_blocks_have_other_copies() -> None:
    job = replicated_job(reach_s=3.0)
    first = placed(job).owners[0]
    assert written(beats(job, 3.0, first), PlacementFact) == []
    (fact,) = written(beats(job, 1.0, first), PlacementFact)
    assert fact.failover
    assert first not in fact.placement.holders
    assert "silent for 3.5 s" in fact.why


def test_a_silent_server_is_waited_for_if_its_blocks_have_no_other_copy() -> None:
    job = replicated_job(reach_s=3.0, servers=2)
    first, second = job.servers
    kill(job, second)
    job.servers.remove(second)
    assert set(placed(job).owners) == {first}
    assert written(beats(job, 50.0, first), PlacementFact) == []
    assert job.core.tables.incarnation.rewinds == 0
    assert written(beats(job, 51.0, first), IncarnationFact), "the coordinator waits a limited time"


def test_two_silent_servers_do_not_lose_blocks() -> None:
    job = replicated_job(reach_s=3.0)
    first, second, _ = job.servers
    beats(job, 60.0, first, second)
    assert job.core.tables.incarnation.rewinds == 0
    assert set(placed(job).owners) & {second}, (
        "after the first eviction, some block has its only copy on the second server"
    )


def test_a_job_whose_workers_reach_no_server_ends_with_a_named_error() -> None:
    job = replicated_job(servers=1, replicas=0, heartbeat_timeout_s=10_000.0)
    cut_off(job, 290, "server-0", *job.workers)
    assert job.core.failure is None
    assert [peer for _, peer in job.core.machines.reachability.cuts] == ["server-0", "server-0"]
    tick(job, 100.0)  # without reports: the workers reach the server for a while
    cut_off(job, 290, "server-0", *job.workers)
    cut_off(job, 100, "server-0", job.workers[0])  # the other worker reaches the server
    assert job.core.failure is None
    cut_off(job, 305, "server-0", *job.workers)
    assert job.core.failure is not None
    assert job.core.failure.reason == (
        "no worker has reached server-0 for 300 s: check the network between them and its log"
    )


def test_the_server_that_more_peers_report_is_evicted() -> None:
    job = replicated_job(servers=4, replicas=2)
    first, second, third, _ = job.servers
    for job.now in (0.0, 0.5):
        effects = job.say(third, Unreachable(first, 3.0, epoch(job)))
        effects += job.say("worker-0", Unreachable(first, 3.0, epoch(job)))
        effects += job.say(first, Unreachable(second, 3.0, epoch(job)))
    assert first not in placed(job).holders
    assert second in placed(job).holders
    assert (job.core.tables.placed.failovers, job.core.tables.incarnation.rewinds) == (1, 0)


def test_servers_probe_unreachable_peers_until_they_answer() -> None:
    job = replicated_job()
    primary = placed(job).owners[0]
    backup = placed(job).backups[0][0]
    for job.now in (0.0, 0.5):
        job.say(primary, Unreachable(backup, 3.0, epoch(job)))
    for _ in range(20):
        (request,) = sent(tick(job), Probe, primary)
        assert (request.peer, request.address) == (backup, "there")
    assert [pair for pair in job.core.machines.reachability.cuts if primary in pair] == [(primary, backup)]
    job.say(primary, Reachable(backup))
    assert sent(tick(job), Probe) == []
    assert job.core.machines.reachability.cuts == []


@pytest.mark.parametrize(("workers", "cut", "servers"), [(1, 1, 2), (2, 2, 3), (3, 2, 3), (3, 2, 2)])
def test_workers_that_reach_no_server_are_cut_off_and_at_most_one_server_is_evicted(
    workers: int, cut: int, servers: int
) -> None:
    job = replicated_job(workers=workers, servers=servers, heartbeat_timeout_s=10.0, reach_s=3.0)
    live(job, 290, *job.workers[:cut])
    assert job.core.tables.placed.failovers <= 1
    assert job.core.failure is None
    assert job.core.tables.reach.cut_off == set(job.workers[:cut])
    live(job, 40, *job.workers[:cut])
    assert (job.core.failure is not None) == (cut == workers), (
        "the job fails exactly if no worker is left that can compute"
    )


def test_reports_of_workers_that_reach_no_server_evict_the_only_primary_at_most_once() -> None:
    small = (TensorSpec("weight", (10,), "float32", Kind.PARAMETER, 0),)
    job = (
        CoordinatorKit(servers=2, tensors=small, replicas=1, rewinds=True, workers=3, reach_s=3.0)
        .start()
        .initialise_with("server-0")
    )
    live(job, 200, "worker-0", "worker-1")
    assert job.core.tables.placed.failovers == 1, (
        "the first reports may be the server's fault; later ones are not believed"
    )
    assert job.core.failure is None


def test_no_copies_are_planned_between_servers_that_cannot_reach_each_other() -> None:
    job = replicated_job(servers=2, heartbeat_timeout_s=1000.0, reach_s=1000.0)
    primary, backup = placed(job).owners[0], placed(job).backups[0][0]
    for job.now in (0.0, 0.5):
        job.say(primary, Unreachable(backup, 3.0, epoch(job)))
    at = epoch(job)
    for _ in range(300):
        tick(job)
    assert epoch(job) == at
