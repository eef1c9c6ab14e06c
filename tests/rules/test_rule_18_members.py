"""Rule 18, a member listens: holding a replica does not depend on the script, and a sum stays until its commit.

A step counts when every member of the group has its sum. A member that dies is a copy that leaves the in-sync set; a
newcomer is a copy that is sent, and joins the group when it has caught up. `--ordered` gives the digest of bsp
(`tests/unit/server/test_group_sums.py`).

Upheld by:
- `core.coordinator.tables.placement.PlacedBlocks`: the group votes
- `core.coordinator.membership.Membership.evict`: worker and member are lost together
- `core.coordinator.offers.Offers.may_lease`: a worker computes once its member is in the group
- `core.coordinator.groups.Groups`: broken groups, and members that leave
- `core.coordinator.reachability.Reachability`, `core.server.group_reach.GroupReach`: members that are apart
- `core.server.contributions.Contributions`: a sum stays until its commit, or its epoch's end
- `server.member.Member`: a thread of its own
"""

from __future__ import annotations

import pytest
from tests.kit.core import CoordinatorKit, sent, written
from tests.kit.group import MemberKit, closings, commit_step, group_job, reduced, report_of

from paceline.core.effects import Effect
from paceline.messages import (
    Assign,
    Beat,
    Broken,
    Bye,
    Committed,
    Copied,
    Exited,
    Grant,
    Meet,
    Met,
    Reachable,
    Ready,
    Shutdown,
    Unreachable,
)
from paceline.types import Commit


def group_of(job: CoordinatorKit) -> tuple[str, ...]:
    placement = job.core.placement
    assert placement is not None
    return placement.group


def lease_all(job: CoordinatorKit) -> dict[str, Grant]:
    return {worker: job.lease(worker) for worker in job.workers}


# ---------------------------------------------------------------- votes


def test_a_step_is_committed_when_every_member_is_ready() -> None:
    job = group_job(workers=3, slots=3)
    grants = lease_all(job)
    fences = tuple(grants[worker].fence for worker in job.workers)
    for number, node in enumerate(job.servers):
        assert job.core.version == 0
        mine = (report_of(grants[job.workers[number]]),)
        effects = job.say(node, Ready(0, job.core.tables.placed.epoch, 0, fences, 0, 0, (), mine))
    assert [commit.version for commit in written(effects, Commit)] == [1]
    assert len(sent(effects, Committed)) == 3


def test_sums_of_different_attempts_are_not_committed() -> None:
    job = group_job(workers=2, slots=2)
    grants = lease_all(job)
    fences = tuple(grants[worker].fence for worker in job.workers)
    for node, told in zip(job.servers, (fences, fences[::-1]), strict=True):
        job.say(node, Ready(0, job.core.tables.placed.epoch, 0, told, 0, 0, (), tuple(map(report_of, grants.values()))))
    assert job.core.version == 0


# ---------------------------------------------------------------- losses and newcomers


def test_the_death_of_a_process_takes_its_worker_and_its_member_out_of_the_group() -> None:
    job = group_job(workers=3, slots=3)
    lease_all(job)
    effects = job.say("engine", Exited(1, "worker-1", 1, -9))
    assert group_of(job) == ("member-0", "member-2")
    assert {"worker-1", "member-1"}.isdisjoint(job.core.tables.members.members)
    assert len(sent(effects, Assign)) == 2
    assert job.core.version == 0  # no commit is lost, and none is made without its sum


def test_the_others_go_on_with_all_slots() -> None:
    job = group_job(workers=3, slots=3)
    lease_all(job)
    job.say("engine", Exited(1, "worker-1", 1, -9))
    grants = [job.lease("worker-0"), job.lease("worker-2")]
    effects = job.turn("worker-0", sealed=report_of(grants[0]))
    grants += sent(effects, Grant, "worker-0")
    assert sorted(grant.slot for grant in grants) == [0, 1, 2]
    closing = closings(effects)[0]
    assert set(closing.members) == {"member-0", "member-2"}


def test_a_newcomer_computes_when_its_member_is_in_the_group() -> None:
    job = group_job(workers=2, slots=2)
    job.say("engine", Exited(1, "worker-1", 1, -9))
    job.say("member-9", job.registration("server", "member-9"))
    job.join("worker-9")
    job.begin("worker-9")
    job.now += 1.0
    job.wrote(job.core.tick(job.now))
    placement = job.core.placement
    assert placement is not None
    assert [node for node, _ in placement.joining] == ["member-9"]
    assert group_of(job) == ("member-0",)
    assert not sent(job.turn("worker-9"), Grant)
    job.say("member-9", Copied(0, placement.epoch, "member-0"))
    assert group_of(job) == ("member-0",)  # until the epoch ends, the copy gets its sums from the owner
    grants = {"worker-0": job.lease("worker-0")}
    effects = job.turn("worker-0", sealed=report_of(grants["worker-0"]))
    second = sent(effects, Grant, "worker-0")[0]
    fences = (grants["worker-0"].fence, second.fence)
    reports = (report_of(grants["worker-0"]), report_of(second))
    effects = job.say("member-0", Ready(0, placement.epoch, 0, fences, 0, 0, (), reports))
    assert job.core.version == 1
    assert group_of(job) == ("member-0", "member-9")
    assert sent(effects, Grant, "worker-9")


def test_the_loss_of_the_whole_group_is_a_rewind() -> None:
    job = group_job(workers=2, slots=2, rewinds=True)
    job.say("engine", Exited(1, "worker-0", 1, -9))
    job.say("engine", Exited(1, "worker-1", 1, -9))
    assert job.core.incarnation == 1


def test_a_member_leaves_when_its_script_has_ended_and_others_have_its_blocks() -> None:
    job = group_job(workers=2, slots=2)
    job.say("worker-1", Bye(job.req()))
    effects = job.wrote(job.core.tick(job.now))
    assert sent(effects, Shutdown, "member-1")
    assert group_of(job) == ("member-0",)
    job.say("worker-0", Bye(job.req()))
    effects = job.wrote(job.core.tick(job.now))
    assert not sent(effects, Shutdown)  # the last member stays: it has the only copy
    assert group_of(job) == ("member-0",)


def test_the_placement_stays_as_it_is_when_the_last_member_has_been_let_go() -> None:
    """Another epoch would make the digest of the last version stale, which nobody holds any more."""
    job = group_job(workers=2, slots=2)
    for worker in ("worker-1", "worker-0"):
        job.say(worker, Bye(job.req()))
        job.wrote(job.core.tick(job.now))
    epoch = job.core.tables.placed.epoch
    job.wrote(job.core.dissolve(job.now))
    job.say("engine", Exited(1, "worker-0", 1, 0))
    for _ in range(3):
        job.now += 1.0
        job.wrote(job.core.tick(job.now))
    assert job.core.tables.placed.epoch == epoch


def test_a_member_that_registers_after_the_end_of_its_script_leaves_too() -> None:
    job = group_job(workers=2, slots=2)
    job.join("worker-9")
    job.say("worker-9", Bye(job.req()))
    job.say("member-9", job.registration("server", "member-9"))
    assert sent(job.wrote(job.core.tick(job.now)), Shutdown, "member-9")


# ---------------------------------------------------------------- rendezvous and broken groups


def test_the_coordinator_hands_values_of_the_rendezvous_to_the_other_members_of_the_epoch() -> None:
    job = group_job(workers=3, slots=3)
    epoch = job.core.tables.placed.epoch
    effects = job.say("member-1", Meet(0, epoch, "key", b"value"))
    assert {to for to in job.servers if sent(effects, Met, to)} == {"member-0", "member-2"}
    assert not job.say("member-1", Meet(0, epoch - 1, "key", b"value"))


def test_a_broken_group_is_followed_by_the_next_one() -> None:
    job = group_job(workers=2, slots=2)
    epoch = job.core.tables.placed.epoch
    job.say("member-0", Broken(0, epoch, "the connection ended"))
    assert job.core.tables.placed.epoch == epoch
    job.now += 1.0
    job.wrote(job.core.tick(job.now))
    assert job.core.tables.placed.epoch == epoch + 1
    assert group_of(job) == ("member-0", "member-1")


def test_members_that_never_reach_each_other_fail_the_job_with_the_remedy() -> None:
    job = group_job(workers=2, slots=2)
    for _ in range(20):
        job.say("member-0", Broken(0, job.core.tables.placed.epoch, "no route"))
        job.now += 1.0
        for node in (*job.servers, *job.workers):
            job.core.tables.members.seen(node, job.now)
        job.wrote(job.core.tick(job.now))
    assert job.core.failure is not None
    assert "no route" in job.core.failure.reason
    assert "--mode bsp" in job.core.failure.reason


# ---------------------------------------------------------------- what a member keeps


def ready_member() -> MemberKit:
    member = MemberKit()
    member.push(0, 0, 5)
    member.close(0, (5, "member-0"), (6, "member-1"))
    taken = member.core.contributions.take()
    member.core.contributions.reduced(reduced(taken, (0, 5), (1, 6)), 0.0)
    return member


def test_a_member_repeats_its_vote_until_the_commit() -> None:
    member = ready_member()
    assert sent(member.core.tick(10.0), Ready)
    member.commit(1, 0, 5, 6)
    assert member.core.versions.applied == 1
    assert not sent(member.core.tick(20.0), Ready)


def test_a_member_drops_its_sum_with_its_epoch_and_adds_its_slots_again() -> None:
    member = ready_member()
    member.group(["member-0", "member-2"], at=0)
    assert not sent(member.core.tick(10.0), Ready)
    member.push(0, 0, 8)
    member.push(0, 1, 9)
    member.close(0, (8, "member-0"), (9, "member-0"))
    taken = member.core.contributions.take()
    assert taken is not None
    assert len(taken.part) == 2  # type: ignore[arg-type]


def test_a_member_after_an_error_waits_for_the_next_epoch() -> None:
    member = MemberKit()
    (broken,) = sent(member.core.contributions.broke((0, member.epoch), "the connection ended"), Broken)
    assert broken.epoch == member.epoch
    member.close(0, (5, "member-1"), (6, "member-1"))
    assert member.core.contributions.take() is None
    assert sent(member.core.tick(10.0), Broken)  # repeated
    member.group(["member-0"], at=0)
    assert not sent(member.core.tick(20.0), Broken)


@pytest.mark.parametrize("lost", ["worker-0", "worker-1"])
def test_whoever_dies_the_commit_that_was_made_stays(lost: str) -> None:
    job = group_job(workers=2, slots=2)
    commit_step(job, lease_all(job))
    job.say("engine", Exited(1, lost, 1, -9))
    assert job.core.version == 1
    assert len(group_of(job)) == 1


# ---------------------------------------------------------------- groups that are short of members


def one_of_two(**changes: object) -> CoordinatorKit:
    """A job that wants two members, of which one has come."""
    job = CoordinatorKit(workers=2, servers=2, mode="allreduce", collective=True, **changes)  # type: ignore[arg-type]
    job.say("member-0", job.registration("server", "member-0"))
    job.join("worker-0")
    return job


def pass_time(job: CoordinatorKit, seconds: int, *heard: str) -> None:
    for _ in range(seconds):
        job.now += 1.0
        for node in heard:
            job.say(node, Beat(node))
        job.wrote(job.core.tick(job.now))


def test_the_first_group_begins_without_members_that_do_not_come() -> None:
    job = one_of_two()
    pass_time(job, 25, "member-0", "worker-0")
    assert job.core.placement is None
    pass_time(job, 10, "member-0", "worker-0")
    assert group_of(job) == ("member-0",)


def test_before_version_0_a_member_whose_script_has_ended_gives_way_to_one_that_computes() -> None:
    job = one_of_two(rewinds=True)
    pass_time(job, 35, "member-0", "worker-0")
    job.begin("worker-0")
    job.say("member-1", job.registration("server", "member-1"))
    job.join("worker-1")
    job.begin("worker-1")
    job.say("worker-0", Bye(job.req()))
    pass_time(job, 40, "member-1", "worker-1")
    assert group_of(job) == ("member-1",)
    assert job.core.failure is None


def test_a_member_that_did_not_hear_that_it_may_go_is_told_again() -> None:
    job = group_job(workers=2, slots=2)
    job.say("worker-1", Bye(job.req()))
    assert sent(job.wrote(job.core.tick(job.now)), Shutdown, "member-1")
    job.say("member-1", job.registration("server", "member-1"))
    assert sent(job.wrote(job.core.tick(job.now)), Shutdown, "member-1")


# ---------------------------------------------------------------- members that cannot reach each other


def warned(job: CoordinatorKit) -> list[str]:
    return list(job.core.machines.warnings.texts.values())


def live(job: CoordinatorKit, seconds: float) -> None:
    """Let time pass in which the coordinator hears every member."""
    until = job.now + seconds
    while job.now < until:
        job.now = min(until, job.now + 1.0)
        for node in list(job.core.tables.members.members):
            job.core.tables.members.seen(node, job.now)
        job.wrote(job.core.tick(job.now))


def report_apart(job: CoordinatorKit, reporter: str, peer: str) -> list[Effect]:
    """`reporter` says twice within a second that `peer` does not answer."""
    effects: list[Effect] = []
    for _ in range(2):
        live(job, 0.5)
        effects += job.say(reporter, Unreachable(peer, 3.0, job.core.tables.placed.epoch))
    return effects


def test_of_two_members_that_cannot_reach_each_other_one_leaves_and_the_job_goes_on() -> None:
    job = group_job(workers=3, slots=3, hosts={"member-2": "far", "worker-2": "far"})
    assert sent(report_apart(job, "member-0", "member-2"), Assign)
    assert group_of(job) == ("member-0", "member-1")
    (text,) = warned(job)
    assert "member-0 and member-2 cannot reach each other" in text
    assert "worker-2 takes no part" in text
    assert "between hosts here and far, or use servers (--mode bsp)" in text
    live(job, 5)
    placement = job.core.placement
    assert placement is not None
    assert not placement.joining, "it gets no copy while it is cut off"
    assert not sent(job.turn("worker-2"), Grant)
    job.say("member-0", Reachable("member-2"))
    live(job, 10)
    assert job.core.placement is not None
    assert [node for node, _ in job.core.placement.joining] == ["member-2"]
    assert job.core.failure is None


def test_a_member_that_the_coordinator_does_not_hear_is_not_only_apart() -> None:
    job = group_job(workers=2, slots=2)
    job.now += 2.0
    job.say("member-0", Unreachable("member-1", 3.0, job.core.tables.placed.epoch))
    job.now += 0.5
    job.say("member-0", Unreachable("member-1", 3.0, job.core.tables.placed.epoch))
    assert not warned(job)
    assert group_of(job) == ("member-0", "member-1")


def test_a_newcomer_with_whom_no_group_works_takes_no_part_and_the_job_goes_on() -> None:
    job = group_job(workers=2, slots=2)
    commit_step(job, lease_all(job))
    job.say("member-9", job.registration("server", "member-9"))
    job.join("worker-9")
    live(job, 1)
    live(job, 12)
    placement = job.core.placement
    assert placement is not None
    for owner in set(placement.owners):
        job.say("member-9", Copied(0, placement.epoch, owner))
    live(job, 1)
    assert group_of(job) == ("member-0", "member-1", "member-9")
    for _ in range(3):
        job.say("member-9", Broken(0, job.core.tables.placed.epoch, "connect timed out"))
        live(job, 1)
    live(job, 20)
    assert group_of(job) == ("member-0", "member-1")
    assert job.core.placement is not None
    assert not job.core.placement.joining
    (text,) = warned(job)
    assert "member-0 and member-9 cannot sum together (connect timed out)" in text
    assert job.core.failure is None


def test_before_version_0_a_member_without_a_worker_gives_way_to_one_that_computes() -> None:
    job = one_of_two(rewinds=True)
    pass_time(job, 35, "member-0", "worker-0")
    job.begin("worker-0")
    job.say("member-1", job.registration("server", "member-1"))
    job.join("worker-1")
    job.begin("worker-1")
    job.say("engine", Exited(1, "worker-0", 1, -9))  # a lost process
    job.say("member-0", job.registration("server", "member-0"))  # whose member is heard again, after the script's end
    live(job, 40)
    assert group_of(job) == ("member-1",)
