"""Rule 17, close before you reduce: the coordinator names the attempt and the member of each slot first.

A member keeps its slots apart until then, and brings nothing if it has none. Nothing is leased twice. With one slot a
rank the lease is the closing, and each member has its own slot.

Upheld by:
- `core.coordinator.groups.Groups.settle`: the closing of a step, once in an epoch
- `core.coordinator.own_slots.OwnSlots`: one slot a rank; a lease is granted again, never to another worker
- `core.coordinator.speculation.Speculation.find_late`: late slots of a group are not leased twice
- `core.server.contributions.Contributions`: a member adds what the closing names, once, in the order of steps
- `core.coordinator.placement.BlockPlacement`: a group on one host is near
- `core.worker.model_state.ModelState`: a worker pushes to all members of a near group
- `blocks.group_parts.GroupLayout`: buckets follow from the model, and say which attempts were added
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.kit.core import sent
from tests.kit.group import MemberKit, closings, commit_step, group_job, reduced, report_of

from paceline.core.effects import Effect, FactRow, PlacementFact, Write
from paceline.core.worker.model_state import ModelState
from paceline.messages import Assign, Broken, Close, GiveBack, Grant, Ready, Refused, Revoke
from paceline.types import Fence, Placement

# ---------------------------------------------------------------- the coordinator closes


def test_a_step_is_closed_for_every_member_when_its_last_slot_is_leased() -> None:
    job = group_job(workers=2, slots=4)
    leased: list[tuple[str, Grant]] = []
    effects: list[Effect] = []
    for worker in ("worker-0", "worker-1", "worker-1", "worker-0"):
        assert not closings(effects)
        effects = job.turn(worker) if len(leased) < 2 else job.turn(worker, sealed=report_of(dict(leased)[worker]))
        (grant,) = sent(effects, Grant, worker)
        leased.append((worker, grant))
    closing, again = closings(effects)
    assert closing == again
    assert closing.fences == tuple(grant.fence for _, grant in leased)
    assert closing.members == ("member-0", "member-1", "member-1", "member-0")
    assert {to for to in ("member-0", "member-1") if sent(effects, Close, to)} == {"member-0", "member-1"}


def test_with_one_slot_a_rank_each_member_has_its_own_slot() -> None:
    job = group_job(workers=3, slots=3)
    for step in range(2):
        grants = {worker: job.lease(worker) for worker in ("worker-2", "worker-0", "worker-1")}
        assert {worker: grant.slot for worker, grant in grants.items()} == {"worker-2": 2, "worker-0": 0, "worker-1": 1}
        assert {grant.step for grant in grants.values()} == {step}
        commit_step(job, grants)
        assert job.core.version == step + 1


def test_the_slot_of_a_worker_that_stays_away_goes_to_another() -> None:
    job = group_job(workers=2, slots=2)
    mine = job.lease("worker-0")
    (early,) = sent(job.turn("worker-0", sealed=report_of(mine)), Grant)
    assert (early.step, early.slot) == (1, 0)
    for _ in range(5):
        job.now += 5.0
        for node in (*job.servers, *job.workers):
            job.core.tables.members.seen(node, job.now)
        assert not sent(job.wrote(job.core.tick(job.now)), Revoke)  # it may be on its way to its first turn
    job.now += 8.0
    for node in (*job.servers, *job.workers):
        job.core.tables.members.seen(node, job.now)
    (revoked,) = sent(job.wrote(job.core.tick(job.now)), Revoke, "worker-0")
    assert revoked.fence == early.fence
    other = job.lease("worker-0")
    assert (other.step, other.slot) == (0, 1)


def test_no_slot_of_a_group_is_leased_twice() -> None:
    job = group_job(workers=2, slots=4)
    job.lease("worker-0")
    job.turn("worker-1", sealed=report_of(job.lease("worker-1")))
    job.now += 60.0
    for node in (*job.servers, *job.workers):
        job.core.tables.members.seen(node, job.now)
    job.core.tick(job.now)
    live = job.core.tables.leases.live
    slots = [lease.slot for lease in live.all()]
    assert len(slots) == len(set(slots))


def test_a_worker_whose_grant_was_lost_gets_the_same_lease_again() -> None:
    job = group_job(workers=2, slots=2)
    first = job.lease("worker-0")
    again = job.lease("worker-0")
    assert (again.fence, again.slot) == (first.fence, first.slot)


def test_a_lease_that_ends_after_the_closing_begins_a_new_epoch() -> None:
    job = group_job(workers=2, slots=2)
    grants = {worker: job.lease(worker) for worker in job.workers}
    epoch = job.core.tables.placed.epoch
    effects = job.say("worker-0", GiveBack(job.req(), grants["worker-0"].fence))
    facts = [e.row.fact for e in effects if isinstance(e, Write) and isinstance(e.row, FactRow)]
    (fact,) = [fact for fact in facts if isinstance(fact, PlacementFact)]
    assert fact.placement.epoch == epoch + 1
    assert fact.placement.group == ("member-0", "member-1")
    assert all(sent(effects, Assign, node) for node in job.servers)


def test_a_restarted_coordinator_begins_a_new_epoch() -> None:
    job = group_job(workers=2, slots=2)
    for worker in job.workers:
        job.lease(worker)
    epoch = job.core.tables.placed.epoch
    job.restart()
    for node in job.servers:
        job.say(node, job.registration("server", node, epoch=epoch, applied=0))
    assert job.core.tables.placed.epoch == epoch + 1


# ---------------------------------------------------------------- a member adds what the closing names


def test_a_member_keeps_its_slots_until_the_step_is_closed() -> None:
    member = MemberKit()
    member.push(0, 0, 5)
    assert member.core.contributions.take() is None
    assert not [key for key, *_ in member.store.added]
    member.close(0, (5, "member-0"), (6, "member-1"))
    taken = member.core.contributions.take()
    assert taken is not None
    assert (taken.step, taken.rank, taken.size, taken.ranks) == (0, 0, 2, (0, 1))
    assert taken.part == ((0, Fence(1, 5)),)
    assert member.core.contributions.take() is None  # once


def test_a_member_waits_for_its_own_slots_and_leaves_out_others() -> None:
    member = MemberKit()
    member.push(0, 0, 5)  # an attempt that the closing does not name
    member.close(0, (7, "member-0"), (6, "member-1"))
    assert member.core.contributions.take() is None
    member.push(0, 0, 7)
    taken = member.core.contributions.take()
    assert taken is not None
    assert taken.part == ((0, Fence(1, 7)),)


def test_a_member_without_slots_brings_nothing() -> None:
    member = MemberKit()
    member.close(0, (5, "member-1"), (6, "member-1"))
    taken = member.core.contributions.take()
    assert taken is not None
    assert taken.part == ()


def test_a_member_is_ready_with_the_attempts_of_the_closing() -> None:
    member = MemberKit()
    member.push(0, 0, 5)
    member.close(0, (5, "member-0"), (6, "member-1"))
    taken = member.core.contributions.take()
    (ready,) = sent(member.core.contributions.reduced(reduced(taken, (0, 5), (1, 6)), 0.0), Ready)
    assert ready.fences == (Fence(1, 5), Fence(1, 6))
    assert [report.slot for report in ready.reports] == [0]  # those of its own slots


@pytest.mark.parametrize("added", [[(0, 5)], [(0, 5), (1, 9)]], ids=["a slot is missing", "another attempt"])
def test_a_sum_of_other_attempts_breaks_the_epoch(added: list[tuple[int, int]]) -> None:
    member = MemberKit()
    member.push(0, 0, 5)
    member.close(0, (5, "member-0"), (6, "member-1"))
    effects = member.core.contributions.reduced(reduced(member.core.contributions.take(), *added), 0.0)
    assert not sent(effects, Ready)
    assert sent(effects, Broken)


def test_the_closing_of_another_epoch_does_not_count() -> None:
    member = MemberKit()
    member.tell(Close(1, 0, member.epoch + 1, 0, (Fence(1, 5), Fence(1, 6)), ("member-1", "member-1")))
    assert member.core.contributions.take() is None


@pytest.mark.parametrize("revision", [1, 2])
def test_a_member_adds_nothing_before_it_knows_the_plan_of_the_closing(revision: int) -> None:
    member = MemberKit()
    fences = (Fence(1, 5), Fence(1, 6))
    member.push(0, 0, 5)
    member.push(0, 1, 6)
    member.tell(Close(1, 0, member.epoch, 0, fences, ("member-0", "member-0"), revision))
    assert member.core.contributions.take() is None, "another revision of the plan may have other slots"


# ---------------------------------------------------------------- a group on one host adds what all workers push


@pytest.mark.parametrize(
    ("changes", "near"),
    [({}, True), ({"hosts": {"member-1": "there"}}, False), ({"shares_memory": False}, False), ({"workers": 9}, False)],
    ids=["one host", "two hosts", "no shared memory", "too many"],
)
def test_a_group_is_near_if_its_few_members_share_memory(changes: dict[str, Any], near: bool) -> None:
    placement = group_job(**changes).core.placement
    assert placement is not None
    assert placement.near is near


@pytest.mark.parametrize("near", [True, False])
def test_a_worker_pushes_to_all_members_of_a_near_group_and_reads_from_its_own(near: bool) -> None:
    model = ModelState("member-0")
    addresses = {"member-0": "a", "member-1": "b"}
    group = tuple(addresses)
    model.place(Placement(1, ("member-1",), addresses, (("member-0",),), (), group, near))
    assert model.by_server == {"member-0": (0,)}
    assert model.targets == (dict.fromkeys(group, (0,)) if near else {"member-0": (0,)})
    assert model.addresses == (addresses if near else {"member-0": "a"})
    model.fill("member-0", 4)
    assert [model.base_of(node) for node in model.targets] == [4] * len(model.targets)


def test_a_member_of_a_near_group_adds_all_slots_in_slot_order_once_they_are_there() -> None:
    member = MemberKit(near=True)
    assert not sent(member.push(0, 1, 6), Ready)
    assert not sent(member.close(0, (5, "member-0"), (6, "member-1")), Ready)
    before = len(member.store.names)
    (ready,) = sent(member.push(0, 0, 5), Ready)
    assert ready.fences == (Fence(1, 5), Fence(1, 6))
    assert [(slot, fence) for slot, fence, _ in member.store.names[before:]] == [(0, Fence(1, 5)), (1, Fence(1, 6))]
    assert [report.slot for report in ready.reports] == [0], "each member reports its own slots"
    assert not sent(member.push(0, 0, 5), Ready), "once"


def test_a_member_of_a_near_group_leaves_out_attempts_that_the_closing_does_not_name() -> None:
    member = MemberKit(near=True)
    member.push(0, 0, 4)
    member.close(0, (5, "member-0"), (6, "member-1"))
    assert not sent(member.push(0, 0, 5), Ready)
    assert member.core.contributions.take() is None, "its own slots alone are no part"
    assert sent(member.push(0, 1, 6), Ready)


def test_a_push_on_a_version_that_another_member_has_handed_out_waits_for_its_commit() -> None:
    member = MemberKit(near=True)
    member.close(0, (5, "member-0"), (6, "member-1"))
    member.close(1, (7, "member-0"), (8, "member-1"))
    assert not sent(member.push(1, 1, 8, ahead=member.epoch), Refused)
    member.push(0, 0, 5)
    assert sent(member.push(0, 1, 6), Ready)
    assert not sent(member.push(1, 0, 7, ahead=member.epoch), Ready)
    (ready,) = sent(member.commit(1, 0, 5, 6), Ready)
    assert (ready.step, ready.fences) == (1, (Fence(1, 7), Fence(1, 8)))
