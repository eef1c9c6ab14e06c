"""Rule 19, moves between reducers: the segment of a step decides where its slots meet, and the blocks move before it.

Holders of the other kind get copies first; then one placement epoch, at the step boundary, makes them owners. Nothing
is leased in between. A move that cannot be made waits and says so. A restart, a rewind and the loss of all holders of
one kind end with the blocks where the next step needs them.

Upheld by:
- `core.schedule.Schedule.barrier`: a segment with another reducer begins when all steps before it are committed
- `core.coordinator.reducers.Reducers.must_move` and `core.coordinator.offers.Offers`: no lease before the move
- `core.coordinator.moves.Moves` and `core.coordinator.rebalance.Rebalance`: the copies, and the epoch that moves
- `core.coordinator.placement.BlockPlacement.place`: the first placement of an incarnation
- `core.coordinator.in_sync_sets.only_whole`: servers beside a group own nothing
"""

from __future__ import annotations

import pytest
from tests.kit.core import CoordinatorKit, segment, sent, written
from tests.kit.group import MEMBERS, closings, commit_step, copy_blocks, move_on, moving_job
from tests.kit.restarted_job import server_back, worker_back

from paceline.core.effects import Effect, PlacementFact
from paceline.core.schedule import Schedule
from paceline.messages import Assign, DialsSet, Exited, Grant, Prepared, Receipt, Refused, SetDials
from paceline.types import DialChange, Placement

SERVERS = {"server-0", "server-1"}


def placement_of(job: CoordinatorKit) -> Placement:
    assert job.core.placement is not None
    return job.core.placement


def set_mode(job: CoordinatorKit, mode: str) -> list[Effect]:
    return job.say("observer", SetDials(job.req(), DialChange(mode=mode), -1, "a test"))


def is_on_servers(job: CoordinatorKit) -> bool:
    placement = placement_of(job)
    return not placement.group and set(placement.holders) <= SERVERS and set(placement.owners) <= SERVERS


def is_on_members(job: CoordinatorKit) -> bool:
    placement = placement_of(job)
    return placement.group == MEMBERS and placement.holders == MEMBERS


def train_in_group(job: CoordinatorKit) -> None:
    commit_step(job, {worker: job.lease(worker) for worker in job.workers})


def in_group(mode: str = "bsp@1,allreduce") -> CoordinatorKit:
    """A job that has moved to its members for step 1."""
    job = moving_job(mode)
    copy_blocks(job)
    job.finish_step(0)
    assert is_on_members(job)
    move_on(job)
    return job


# ---------------------------------------------------------------- the boundary


@pytest.mark.parametrize(("before", "after"), [("bsp", "allreduce"), ("allreduce", "bsp")])
def test_a_segment_with_another_reducer_begins_when_all_steps_before_are_committed(before: str, after: str) -> None:
    first, second = segment(mode=before), segment(step=2, slots=4, offset=8, revision=1, mode=after)
    schedule = Schedule([first, second])
    assert (schedule.barrier(1), schedule.barrier(2), schedule.barrier(5)) == (0, 2, 2)
    schedule.append(segment(step=2, slots=3, offset=8, revision=2, mode=after))
    assert schedule.barrier(2) == 2, "the segment that it replaces is not the one before"


def test_no_slot_of_the_next_reducer_is_leased_before_the_blocks_have_moved() -> None:
    job = moving_job()
    grants = {worker: job.lease(worker) for worker in job.workers}
    assert {grant.step for grant in grants.values()} == {0}
    assert not sent(job.turn("worker-0", held=(grants["worker-0"].fence,)), Grant), "no early lease of step 1"
    for worker, grant in grants.items():
        job.seal(worker, grant)
    effects: list[Effect] = []
    for server in job.servers:
        effects += job.ready(server, 0, *(grant.fence for grant in grants.values()))
    assert job.core.version == 1
    assert not sent(effects, Grant)
    assert not sent(move_on(job), Grant)
    assert "it waits for the copies of member-0 and member-1" in job.core.machines.rebalance.moves.awaited
    effects = [*copy_blocks(job), *move_on(job)]
    assert is_on_members(job)
    leased = sent(effects, Grant)
    assert {grant.step for grant in leased} == {1}
    assert {grant.epoch for grant in leased} == {placement_of(job).epoch}
    assert job.core.machines.rebalance.moves.awaited == ""


def test_copies_are_made_before_a_scheduled_move_and_the_move_follows_the_commit() -> None:
    job = moving_job()
    assert {node for node, _ in placement_of(job).joining} == set(MEMBERS)
    copy_blocks(job)
    assert placement_of(job).group == ()
    assert set(placement_of(job).owners) == SERVERS
    effects = job.finish_step(0)
    (fact,) = written(effects, PlacementFact)
    assert fact.why == "the blocks move to the workers"
    assert fact.placement.group == fact.placement.holders == MEMBERS
    assert set(fact.placement.owners) <= set(MEMBERS)
    assert {to for to in (*MEMBERS, *SERVERS) if sent(effects, Assign, to)} == {*MEMBERS, *SERVERS}


def test_the_group_closes_and_commits_and_servers_count_attempts_as_before_when_the_blocks_are_back() -> None:
    job = in_group("bsp@1,allreduce@3,bsp")
    assert job.core.machines.segments.needs_one_attempt(1)
    train_in_group(job)
    copy_blocks(job)
    assert placement_of(job).group == MEMBERS, "servers have copies beside the group"
    assert set(placement_of(job).holders) == {*MEMBERS, *SERVERS}
    train_in_group(job)
    assert job.core.version == 3
    assert is_on_servers(job)
    assert not job.core.machines.segments.needs_one_attempt(3)
    assert not closings(job.turn("worker-0"))
    job.finish_step(3)
    assert job.core.version == 4


def test_a_move_waits_for_holders_that_are_wanted_but_not_for_ever() -> None:
    job = moving_job()
    job.say("engine", Exited(job.req(), "worker-1", 1, -9))
    move_on(job)
    copy_blocks(job)
    job.finish_step(0)
    assert placement_of(job).group == ()
    move_on(job, 5.0)
    assert placement_of(job).group == ()
    for _ in range(3):
        move_on(job, 3.0)
    assert placement_of(job).group == ("member-0",)


# ---------------------------------------------------------------- restarts, rewinds and losses


def test_a_restarted_coordinator_repeats_the_move() -> None:
    job = moving_job()
    copy_blocks(job)
    holders = placement_of(job).holders
    job.servers, servers = [], job.servers  # nobody hears of the next commit
    job.core.tables.leases.restart(0, initialised=True)
    job.servers = servers
    job.restart()
    for node in holders:
        server_back(job, node, applied=0)
    for worker in job.workers:
        worker_back(job, worker)
    job.finish_step(0)
    move_on(job)
    assert is_on_members(job)


@pytest.mark.parametrize(("mode", "nodes"), [("allreduce@1,bsp", MEMBERS), ("bsp@9,allreduce", tuple(SERVERS))])
def test_an_incarnation_begins_where_its_first_step_needs_the_blocks(mode: str, nodes: tuple[str, ...]) -> None:
    job = CoordinatorKit(workers=2, servers=2, mode=mode, collective=True)
    for node in (*SERVERS, *MEMBERS):
        job.say(node, job.registration("server", node))
    for worker in job.workers:
        answers = sent(job.join(worker), Prepared)
    assert set(answers[-1].placement.owners) <= set(nodes)
    assert bool(answers[-1].placement.group) == (nodes == MEMBERS)


def test_a_group_that_is_lost_leaves_its_blocks_to_servers_that_have_copies_and_forms_again() -> None:
    job = in_group("bsp@1,allreduce@4,bsp")
    train_in_group(job)
    copy_blocks(job)
    assert set(placement_of(job).holders) == {*MEMBERS, *SERVERS}
    for number in (0, 1):
        job.say("engine", Exited(job.req(), f"worker-{number}", 1, -9))
    assert job.core.incarnation == 0, "no rewind"
    assert is_on_servers(job)
    assert job.core.tables.reducers.must_move, "step 2 is one of a group"
    for number in (0, 1):
        job.say(f"member-{number}", job.registration("server", f"member-{number}", start=2))
        job.say(f"worker-{number}", job.registration("worker", f"worker-{number}", start=2, progress=0))
    assert not sent(job.turn("worker-0"), Grant)
    move_on(job)
    copy_blocks(job)
    move_on(job)
    assert [name.partition("/")[0] for name in placement_of(job).group] == list(MEMBERS)
    assert job.core.version == 2


# ---------------------------------------------------------------- by hand, and what cannot be


def test_set_moves_the_blocks_there_and_back() -> None:
    job = moving_job("bsp")
    (done,) = sent(set_mode(job, "allreduce"), DialsSet)
    assert done.step == 1
    job.finish_step(0)
    assert not sent(job.turn("worker-0"), Grant)
    move_on(job)
    effects = [*copy_blocks(job), *move_on(job)]
    assert is_on_members(job)
    assert sent(effects, Grant, "worker-0")
    (done,) = sent(set_mode(job, "asp"), DialsSet)
    assert done.step == 2
    grants = {"worker-0": sent(effects, Grant, "worker-0")[0], "worker-1": job.lease("worker-1")}
    commit_step(job, grants)
    move_on(job)
    copy_blocks(job)
    move_on(job)
    assert is_on_servers(job)
    assert job.core.version == 2


def test_a_change_of_mind_before_the_move_leaves_the_blocks_where_they_are() -> None:
    job = moving_job("bsp")
    set_mode(job, "allreduce")
    move_on(job)
    copy_blocks(job)
    set_mode(job, "bsp")
    job.finish_step(0)
    move_on(job)
    assert is_on_servers(job), "no copies are left on the members"
    assert job.core.version == 1


def test_a_run_whose_workers_host_no_members_refuses_the_group_and_one_without_servers_the_servers() -> None:
    job = CoordinatorKit(workers=2, servers=1).start(data_len=80).initialise()
    (refused,) = sent(set_mode(job, "allreduce"), Refused)
    assert "--insecure-collective" in refused.detail
    job = CoordinatorKit(workers=2, servers=2, mode="allreduce", collective=True).start(data_len=80)
    job.core.tables.members.wanted_servers = 0
    (refused,) = sent(set_mode(job, "bsp"), Refused)
    assert "paceline scale --servers 1" in refused.detail


def test_without_servers_a_move_says_what_it_waits_for() -> None:
    job = in_group("bsp@1,allreduce@2,bsp")
    for name in ("server-0", "server-1"):
        job.say("engine", Exited(job.req(), name, 1, -9))
    train_in_group(job)
    assert job.core.version == 2
    assert "from step 2 on the job needs servers: it waits for servers" in job.core.machines.rebalance.moves.awaited
    for _ in range(6):
        move_on(job, 3.0)
    assert placement_of(job).group == MEMBERS, "members do not act as servers"
    assert not sent(job.turn("worker-0"), Grant)


def test_a_receipt_of_servers_counts_nothing_in_a_group() -> None:
    job = in_group()
    grant = job.lease("worker-0")
    effects = job.say("server-0", Receipt(0, placement_of(job).epoch, 1, grant.slot, grant.fence))
    assert not effects
