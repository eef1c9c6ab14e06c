"""Rule 14, hosts count: losses, complaints and poison count hosts, not processes.

A lost host is one event and one epoch, and heirs are on hosts that nobody suspects. A block lacks a copy while it is on
fewer hosts than min(R + 1, hosts); surplus copies go from doubled hosts first. Hosts never hold up a commit.

Upheld by:
- `core.coordinator.placement_plan.Servers.surplus`: which surplus copy goes first
- `core.coordinator.placement_plan.spread`: the first backups are on other hosts
- `core.coordinator.placement_plan.joins`: a block on too few hosts gets a copy on another one
- `core.coordinator.in_sync_sets.promote`: heirs on hosts that nobody suspects
- `core.coordinator.host_loss`: which processes are lost together
- `core.coordinator.membership.Membership.evict`: one event, one change of placement
- `core.coordinator.membership.Membership.host_lost`: also servers that are known only from the log
- `core.coordinator.reachability.Reachability.evict_silent`: a silent host is lost as one
- `core.coordinator.reachability.Reachability._reports`: hosts complain, not processes
- `core.coordinator.tables.lost_holders.LostHolders.add`: a lost host counts once
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.placed_job import SMALL, TENSORS, compute, epoch, placed, ready, replicated_job, settle, tick

from paceline.core.coordinator.in_sync_sets import promote
from paceline.core.effects import Effect, IncarnationFact, PlacementFact
from paceline.core.layout import cut
from paceline.messages import Abort, Beat, Exited, Grant, HostLost, Ok, Unreachable
from paceline.types import NodeId, Placement, SlotId, name_of

HOSTS = {"server-0": "a", "server-1": "a", "server-2": "b", "server-3": "b", "worker-0": "a", "worker-1": "b"}


def job_on(hosts: dict[NodeId, str], **changes: Any) -> CoordinatorKit:
    servers = sum(node.startswith("server") for node in hosts)
    return replicated_job(servers=servers, hosts=hosts, **changes)


def spans(job: CoordinatorKit) -> list[set[str]]:
    """Return the hosts of each block's copies."""
    place = placed(job)
    return [{job.hosts[node] for node in place.copies(block)} for block in range(len(place.owners))]


def lose(job: CoordinatorKit, host: str) -> list[Effect]:
    return job.say("engine", HostLost(job.req(), host, "its agent is gone"))


def beat(job: CoordinatorKit, *nodes: NodeId) -> None:
    for node in nodes:
        job.say(node, Beat(node))


def silence(job: CoordinatorKit, seconds: float, heard: list[NodeId]) -> list[Effect]:
    """Let time pass, in which only the members `heard` send heartbeats."""
    effects: list[Effect] = []
    until = job.now + seconds
    while job.now < until - 1e-9:
        job.now += 0.25
        beat(job, *heard)
        effects += job.wrote(job.core.tick(job.now))
    return effects


# ---------------------------------------------------------------- copies


def test_the_first_copies_of_a_block_are_on_different_hosts() -> None:
    job = job_on(HOSTS)
    assert spans(job) == [{"a", "b"}] * len(spans(job))


def test_a_block_whose_copies_are_on_one_host_gets_a_copy_on_a_new_host_and_loses_a_doubled_one() -> None:
    job = job_on({"server-0": "a", "server-1": "a", "worker-0": "a", "worker-1": "a"})
    assert spans(job) == [{"a"}] * len(spans(job))
    job.hosts["server-2"] = "b"
    job.core.tables.members.want(0, 3)
    job.say("server-2", job.registration("server", "server-2"))
    settle(job)
    assert spans(job) == [{"a", "b"}] * len(spans(job))
    assert all(len(placed(job).copies(block)) == 2 for block in range(len(placed(job).owners)))


def test_a_step_is_committed_while_the_copies_are_on_too_few_hosts() -> None:
    job = job_on({"server-0": "a", "server-1": "a", "worker-0": "a", "worker-1": "a"})
    job.hosts["server-2"] = "b"
    job.say("server-2", job.registration("server", "server-2"))
    ready(job, 0, compute(job, 0))
    assert job.core.version == 1


def test_an_heir_is_on_a_host_that_nobody_suspects() -> None:
    blocks = cut(SMALL)
    where = Placement(1, ("a",), {}, (("b", "c"),))
    alive = frozenset({"b", "c"})
    assert promote(blocks, where, frozenset({"a"}), alive) == (("b",), (("c",),))
    assert promote(blocks, where, frozenset({"a"}), alive, suspects={"b"}) == (("c",), (("b",),))


# ---------------------------------------------------------------- a lost host is one event


def test_a_lost_host_is_one_epoch_and_no_rewind() -> None:
    job = job_on(HOSTS)
    before = epoch(job)
    effects = lose(job, "a")
    assert sent(effects, Ok, "engine")
    (fact,) = written(effects, PlacementFact)
    assert (fact.placement.epoch, fact.failover, fact.why) == (before + 1, True, "host a is lost (its agent is gone)")
    assert set(job.core.tables.members.members) == {"server-2", "server-3", "worker-1"}
    assert job.core.totals.lost_workers == 1


def test_the_loss_of_all_copies_with_one_host_is_one_rewind() -> None:
    job = job_on(HOSTS | {"server-2": "a", "server-3": "a"})
    assert len(written(lose(job, "a"), IncarnationFact)) == 1


def test_work_that_a_lost_host_frees_is_not_offered_to_its_own_workers() -> None:
    job = job_on(HOSTS | {"worker-2": "a"}, workers=3, slots=3)
    for worker in ("worker-0", "worker-2"):
        job.lease(worker)
    job.turn("worker-1")
    grants = [e for e in lose(job, "a") if sent([e], Grant)]
    assert {grant.to for grant in grants} <= {"worker-1"}  # type: ignore[union-attr]


def test_one_process_of_a_host_that_dies_is_lost_alone() -> None:
    job = job_on(HOSTS)
    job.say("engine", Exited(job.req(), "server-0", 1, -9))
    assert "server-1" in job.core.tables.members.members
    assert "worker-0" in job.core.tables.members.members


@pytest.mark.parametrize("heard_too", [[], ["worker-0"]])
def test_a_silent_host_goes_as_one_after_the_reach_time(heard_too: list[NodeId]) -> None:
    """Only if all its processes are silent; a worker alone would have the whole heartbeat time-out."""
    job = job_on(HOSTS, reach_s=3.0, heartbeat_timeout_s=10.0)
    beat(job, *job.servers, *job.workers)
    effects = silence(job, 4.0, ["server-2", "server-3", "worker-1", *heard_too])
    members = set(job.core.tables.members.members)
    assert not members & {"server-0", "server-1"}
    assert ("worker-0" in members) == bool(heard_too)
    assert len(written(effects, PlacementFact)) == (2 if heard_too else 1)


def test_workers_of_a_silent_host_without_blocks_go_after_the_reach_time() -> None:
    job = job_on(HOSTS | {"worker-1": "c"}, reach_s=3.0, heartbeat_timeout_s=10.0)
    job.lease("worker-1")
    beat(job, *job.servers, *job.workers)
    silence(job, 4.0, [*job.servers, "worker-0"])
    assert "worker-1" not in job.core.tables.members.members


def test_a_silent_host_with_the_only_copies_has_the_whole_time_out_and_goes_as_one() -> None:
    job = job_on(HOSTS, replicas=0, reach_s=3.0, heartbeat_timeout_s=10.0)
    beat(job, *job.servers, *job.workers)
    others = ["server-2", "server-3", "worker-1"]
    assert written(silence(job, 8.0, others), IncarnationFact) == []
    assert len(written(silence(job, 4.0, others), IncarnationFact)) == 1
    assert not {"server-0", "server-1", "worker-0"} & set(job.core.tables.members.members)


def test_the_job_waits_when_the_coordinator_hears_no_host() -> None:
    job = job_on(HOSTS, reach_s=3.0, heartbeat_timeout_s=10.0)
    beat(job, *job.servers, *job.workers)
    assert silence(job, 30.0, []) == []
    assert len(job.core.tables.members.members) == 6


def test_a_lost_server_that_a_restarted_coordinator_knows_only_from_the_log_goes_alone() -> None:
    job = job_on(HOSTS, reach_s=3.0, heartbeat_timeout_s=10.0)
    job.restart()
    others = [node for node in (*job.servers, *job.workers) if node != "server-0"]
    for node in others:
        role = node.partition("-")[0]
        job.say(node, job.registration(role, node, epoch=1, applied=0))
    silence(job, 11.0, others)
    assert set(job.core.tables.members.members) == set(others)
    assert "server-0" not in placed(job).holders


def restarted_job() -> CoordinatorKit:
    """A restarted coordinator that knows server-0/3 and server-1/4 of host a, and two servers of b, from its log."""
    servers = ["server-0/3-11-ab", "server-1/4-12-ab", "server-2/1-13-ab", "server-3/1-14-ab"]
    hosts = dict(zip((*servers, "worker-0", "worker-1"), "aabbbb", strict=True))
    spec: dict[str, Any] = {"replicas": 1, "rewinds": True, "heartbeat_timeout_s": 100.0, "reach_s": 100.0}
    job = CoordinatorKit(servers=4, tensors=TENSORS, hosts=hosts, **spec)
    job.servers = servers
    job.start(data_len=12).initialise()
    assert set(placed(job).holders) == set(servers)
    job.restart()
    return job


def test_a_restarted_coordinator_learns_of_a_lost_host_whose_servers_have_not_registered_again() -> None:
    """It does not know their host: the report names them, and they go as one."""
    job = restarted_job()
    effects = job.say("engine", HostLost(job.req(), "a", "its agent is gone", (("server-0", 3), ("server-1", 4))))
    assert len(written(effects, PlacementFact)) == 1
    assert written(effects, IncarnationFact) == []
    assert {name_of(node) for node in placed(job).holders} == {"server-2", "server-3"}
    assert {name_of(node) for node in job.core.tables.incarnation.awaited} == {"server-2", "server-3"}


def test_the_end_of_an_earlier_start_says_nothing_of_a_server_that_has_not_registered_again() -> None:
    job = restarted_job()
    job.say("engine", Exited(job.req(), "server-0", 2, -9))
    assert "server-0/3-11-ab" in job.core.tables.members.members
    job.say("engine", Exited(job.req(), "server-0", 3, -9))
    assert "server-0/3-11-ab" not in job.core.tables.members.members


def test_a_host_whose_sessions_all_broke_is_lost_and_one_with_a_session_is_not() -> None:
    job = job_on(HOSTS)
    assert job.core.sessions_lost({"server-0", "server-1"}, job.now) == []
    effects = job.core.sessions_lost({"server-0", "server-1", "worker-0"}, job.now)
    assert len(written(effects, PlacementFact)) == 1
    assert job.core.sessions_lost({"server-2", "server-3", "worker-1"}, job.now) == [], "no other host has a session"


# ---------------------------------------------------------------- complaints


def test_the_processes_of_one_host_have_one_voice_about_another_host() -> None:
    """Host a has two complaining servers and worker, but b and c complain about a: two hosts against one."""
    hosts = {"server-0": "a", "server-1": "a", "server-2": "b", "server-3": "c", "worker-0": "b", "worker-1": "c"}
    job = job_on(hosts)
    block = next(b for b in range(len(placed(job).owners)) if placed(job).owners[b] == "server-0")
    backup = placed(job).copies(block)[1]
    at = epoch(job)
    for node in ("server-2", "server-3"):
        job.say(node, Unreachable("server-1", 3.0, at))
    job.say("server-1", Unreachable(backup, 3.0, at))
    for job.now in (0.0, 0.5):
        job.say("server-0", Unreachable(backup, 3.0, at))
    assert "server-0" not in job.core.tables.members.members, "two hosts complain about host a, one about the other"
    assert backup in job.core.tables.members.members


def test_a_primary_stays_when_only_one_host_of_three_cannot_reach_it() -> None:
    hosts = HOSTS | {"worker-0": "c", "worker-1": "c", "worker-2": "c", "worker-3": "b", "worker-4": "a"}
    job = job_on(hosts, workers=5)
    for job.now in (0.0, 0.5, 1.0):
        for worker in ("worker-0", "worker-1", "worker-2"):
            job.say(worker, Unreachable("server-0", 3.0, epoch(job)))
    assert "server-0" in job.core.tables.members.members, "three of five workers complain, but they are one host"


# ---------------------------------------------------------------- poison


def two_holders(job: CoordinatorKit, first: NodeId, second: NodeId) -> None:
    """Let both workers hold slot 0 of step 0, as when the first one is late."""
    grant = job.lease(first)
    assert (grant.step, grant.slot) == (0, 0)
    job.core.tables.leases.lease(SlotId(0, 0), second, job.now)


def test_two_lost_hosts_are_not_a_poisoned_slot_and_three_dead_workers_are() -> None:
    hosts = {"server-0": "z"} | {f"worker-{i}": "ab"[i // 2] for i in range(4)}
    job = job_on(hosts, workers=4, slots=1, replicas=0)
    for pair, host in ((("worker-0", "worker-1"), "a"), (("worker-2", "worker-3"), "b")):
        two_holders(job, *pair)
        assert sent(lose(job, host), Abort) == []
    assert job.core.failure is None

    alone = job_on(hosts, workers=4, slots=1, replicas=0)
    two_holders(alone, "worker-0", "worker-1")
    for worker in ("worker-0", "worker-1"):
        alone.say("engine", Exited(alone.req(), worker, 1, -9))
    alone.lease("worker-2")
    alone.say("engine", Exited(alone.req(), "worker-2", 1, -9))
    assert alone.core.failure is not None, "a slot that ends three processes fails the job"


def test_a_tick_without_losses_evicts_nobody() -> None:
    job = job_on(HOSTS)
    tick(job)
    assert len(job.core.tables.members.members) == 6
