"""Rule 19, a plan has a revision and replaces the whole: what was leased by another revision is refused.

A change of dials holds from the first step on of which nothing is leased. It waits for the term after a restart of the
coordinator, holds until the next row of the schedule, and outlives a rewind. A segment with a window, or after one,
begins when all steps before it are committed.

Upheld by:
- `core.coordinator.live_dials.LiveDials`: the first step, and the term
- `core.coordinator.segments.Segments.change` and `core.live_plan`: the durable segments
- `core.coordinator.segments.Segments.reset`: they outlive a rewind
- `core.coordinator.adoption.Adoption.adopt` and `core.coordinator.commits.Commits.ready`: void leases and reports
- `core.server.attempts.Attempts.push` and `core.server.plan.KnownPlan.outdates`: void pushes
- `core.server.backups.Backup.install`: void sums
- `core.schedule.Schedule.barrier`: where segments with a window begin
- `worker.last_sealed_turn.SealedTurn.is_of` and `data.batch_source.SlotKey`: prepared batches, computed turns
"""

from __future__ import annotations

import pytest
from tests.kit.core import HYPER, CoordinatorKit, ServerKit, fence, plan, segment, sent, written
from tests.kit.restarted_job import held, save, server_back, trained, worker_back

from paceline.core.effects import Effect, PhaseFact, SegmentFact
from paceline.core.schedule import Schedule
from paceline.core.server.backups import Backup
from paceline.data.batch_source import SlotKey
from paceline.messages import (
    BlockFrame,
    DialsSet,
    Exited,
    Grant,
    HeldLease,
    Plan,
    PushAck,
    Ready,
    Refused,
    Replicate,
    SetDials,
    SumMeta,
)
from paceline.types import UNLIMITED, Commit, DialChange, Segment
from paceline.worker.last_sealed_turn import SealedTurn


def job_of(**changes: object) -> CoordinatorKit:
    return CoordinatorKit(workers=2, slots=2, **changes).start(data_len=80).initialise()  # type: ignore[arg-type]


def set_dials(job: CoordinatorKit, step: int = -1, sender: str = "observer", **dials: object) -> list[Effect]:
    return job.say(sender, SetDials(job.req(), DialChange(**dials), step, "a test"))  # type: ignore[arg-type]


def answer(effects: list[Effect]) -> DialsSet:
    (done,) = sent(effects, DialsSet)
    return done


# ---------------------------------------------------------------- the first step


def test_a_change_holds_above_everything_leased_early_leases_included() -> None:
    job = job_of()
    first, _ = (job.lease(worker) for worker in job.workers)
    assert answer(set_dials(job, mode="ssp:4")).step == 1
    job = job_of()
    first, _ = (job.lease(worker) for worker in job.workers)
    (early,) = sent(job.turn("worker-0", held=(first.fence,)), Grant)
    assert early.step == 1
    effects = set_dials(job, mode="ssp:4")
    assert answer(effects).step == 2
    (fact,) = written(effects, SegmentFact)
    assert (fact.step, fact.reason, fact.change) == (2, "a test", DialChange(mode="ssp:4"))
    assert [s.step for s in fact.segments] == [2]
    (told,) = sent(effects, Plan)
    assert told.segments[-1] == fact.segments[0]
    assert told.revision > fact.segments[0].revision > told.segments[0].revision


def test_the_samples_go_on_where_the_old_segment_ends() -> None:
    job = job_of()
    job.lease("worker-0")
    (fact,) = written(set_dials(job, slots=5), SegmentFact)
    (new,) = fact.segments
    assert (new.step, new.slots, new.epoch, new.offset) == (1, 5, 0, 4)
    assert new.end_step == 1 + 8, "76 samples are left, 10 of them in a step"
    assert job.core.schedule.num_slots(0) == 2
    assert job.core.tables.phases.open is not None
    assert job.core.tables.phases.open.end == 9


def test_a_script_in_lock_step_gets_the_same_step_whoever_asks_first() -> None:
    for late in (False, True):
        job = job_of()
        first, _ = (job.lease(worker) for worker in job.workers)
        if late:
            job.turn("worker-0", held=(first.fence,))
        assert answer(set_dials(job, 0, "worker-0", mode="asp")).step == 2
        again = answer(set_dials(job, 0, "worker-1", mode="asp"))
        assert (again.step, again.change) == (2, DialChange())


def test_a_change_holds_until_the_next_row_of_the_schedule() -> None:
    job = CoordinatorKit(workers=2, slots=2, mode="bsp@6,ssp:2@12,asp").start(data_len=80).initialise()
    (fact,) = [row.fact for row in job.disk.facts if isinstance(row.fact, PhaseFact)]
    assert [(s.step, s.mode) for s in (fact.segment, *fact.more)] == [(0, "bsp"), (6, "ssp:2"), (12, "asp")]
    job.lease("worker-0")
    (fact_,) = written(set_dials(job, mode="asp", lr_scale=0.5), SegmentFact)
    assert [(s.step, s.mode, s.lr_scale) for s in fact_.segments] == [
        (1, "asp", 0.5),
        (6, "ssp:2", 0.5),
        (12, "asp", 0.5),
    ]


def test_a_change_waits_for_the_term_after_a_restart() -> None:
    job = trained(1)
    job.restart()
    assert set_dials(job, mode="asp") == []
    for server in job.servers:
        server_back(job, server)
    grant = Grant(1, 1, 0, 1, 1, 0, 2, fence(90), job.core.schedule.segment(1), False)
    worker_back(job, "worker-0", held(grant))
    assert job.core.tick(job.now) == [], "worker-1 may still report a lease"
    job.now += 1.0
    effects = job.wrote(job.core.tick(job.now))
    assert answer(effects).step == 2, "step 1 was reported"


# ---------------------------------------------------------------- what another revision leased


def changed_after_a_restart() -> tuple[CoordinatorKit, Grant, Segment]:
    """A job whose dials change from step 1 on, while a worker has a lease of step 1 that it has not reported yet."""
    job = trained(1)
    lease = job.lease("worker-0")
    assert lease.step == 1
    job.restart()
    for server in job.servers:
        server_back(job, server)
    worker_back(job, "worker-1")
    job.now += 1.0
    (fact,) = written(set_dials(job, slots=4), SegmentFact)
    assert fact.step == 1
    return job, lease, fact.segments[0]


def test_a_held_lease_of_another_revision_is_not_adopted() -> None:
    job, lease, new = changed_after_a_restart()
    worker_back(job, "worker-0", held(lease))
    assert len(job.core.tables.leases.live) == 0
    assert new.revision > lease.revision
    job.now += 1.0
    mine = HeldLease(lease.step, lease.slot, lease.fence, None, 0, new.revision)
    worker_back(job, "worker-0", mine, req=job.req())
    assert len(job.core.tables.leases.live) <= 1


def test_a_report_of_servers_by_another_revision_commits_nothing() -> None:
    job, lease, new = changed_after_a_restart()
    epoch = job.core.tables.placed.epoch
    for server in job.servers:
        assert written(job.say(server, Ready(0, epoch, 1, (lease.fence, fence(99)), 0, 0, ())), Commit) == []
    assert 1 not in job.core.tables.gate
    for server in job.servers:
        job.say(server, Ready(0, epoch, 1, (fence(1),) * 4, 0, 0, (), (), new.revision))
    assert 1 in job.core.tables.gate


NEW = segment(step=1, offset=4, slots=4, end_step=3, revision=1)


def test_a_push_of_another_revision_is_refused_by_name() -> None:
    server = ServerKit(segment())
    assert sent(server.push(0, 0, 5, revision=1), Refused)[0].rule == "plan", "the newer plan has not come yet"
    server.tell(plan(segment(), NEW, revision=2))
    assert sent(server.push(1, 0, 6, base=0), Refused)[0].rule == "revision"
    assert sent(server.push(0, 0, 5), PushAck)[0].outcome == "held", "step 0 has its segment still"


def test_a_server_drops_what_another_revision_began_and_keeps_the_rest() -> None:
    server = ServerKit(segment(window=UNLIMITED, mode="asp"))
    for step in (0, 1):
        server.push(step, 0, 10 + step, base=0)
    old = segment(window=UNLIMITED, mode="asp")
    server.tell(plan(old, segment(step=1, offset=4, slots=1, end_step=9, window=0, revision=1), revision=2))
    assert list(server.core.attempts.steps) == [0]
    assert server.core.plan.revision == 2


def test_a_plan_that_comes_late_voids_nothing_that_is_newer() -> None:
    """A copy may get the sum of a step before the plans that lead to it."""
    known = ServerKit(segment()).core.plan
    late = plan(segment(), segment(step=5, phase=1, end_step=6, revision=1), revision=2)
    assert known.outdates(late, [(6, 2), (3, 0)]) == []
    assert known.outdates(late, [(6, 1), (5, 0)]) == [6, 5]


def test_a_server_takes_a_plan_that_has_as_many_segments_as_the_one_that_it_replaces() -> None:
    server = ServerKit(segment())
    server.tell(plan(segment(), segment(step=3, offset=12, slots=1, revision=1), revision=2))
    server.tell(plan(segment(), NEW, revision=3))
    assert server.core.plan.schedule.segments[-1] == NEW
    server.tell(plan(segment(), revision=1))
    assert server.core.plan.schedule.segments[-1] == NEW, "an older plan that comes late is ignored"


def test_a_plan_that_replaces_another_of_the_same_length_has_a_higher_revision() -> None:
    job = CoordinatorKit(workers=3, slots=1, mode="asp").start(data_len=80).initialise()
    for worker in job.workers:
        job.lease(worker)
    assert answer(set_dials(job, lr_scale=0.5)).step == 3
    before = job.core.machines.segments.plan()
    job.core.tables.leases.restart(0, initialised=True)  # as a change of placement does
    assert answer(set_dials(job, lr_scale=0.25)).step < 3
    after = job.core.machines.segments.plan()
    assert len(after.segments) == len(before.segments)
    assert after.revision == before.revision + 1


def test_a_backup_replaces_the_sum_of_another_revision() -> None:
    server = ServerKit()
    backup = Backup(server.store)

    def sum_of(revision: int, counter: int) -> Replicate:
        frames: tuple[BlockFrame, ...] = ()
        return Replicate(1, 0, 1, 4, None, (fence(counter),), SumMeta(1.0, 1), frames, revision=revision)

    backup.install(sum_of(1, 5), ())
    backup.install(sum_of(2, 6), ())
    assert list(backup.sums[4]) == [(fence(6),)]
    backup.install(sum_of(1, 5), ())
    assert list(backup.sums[4]) == [(fence(6),)]
    backup.drop_outdated(lambda steps: [step for step, revision in steps if revision < 3])
    assert backup.sums == {}


def test_prepared_batches_and_computed_turns_are_of_one_revision() -> None:
    old, new = segment(), segment(revision=1)
    assert SlotKey(old, 1, 0) != SlotKey(new, 1, 0)
    leases = [Grant(1, 1, 0, 1, 1, 0, 2, fence(5), of, False) for of in (old, new)]
    turn = SealedTurn(leases[0], 1, 0, 1.0, HYPER, {}, 0.1, {})
    assert turn.is_of(leases[0])
    assert not turn.is_of(leases[1])


# ---------------------------------------------------------------- boundaries


@pytest.mark.parametrize(("before", "after"), [("bsp", "asp"), ("ssp:4", "bsp"), ("asp", "ssp:1")])
def test_a_segment_with_a_window_begins_when_all_steps_before_are_committed(before: str, after: str) -> None:
    job = CoordinatorKit(workers=3, slots=1, mode=before).start(data_len=80).initialise()
    first = job.lease("worker-0")
    assert answer(set_dials(job, mode=after)).step == 1
    assert sent(job.turn("worker-1"), Grant) == []
    job.seal("worker-0", first)
    epoch = job.core.tables.placed.epoch
    effects = job.say("server-0", Ready(0, epoch, 0, (first.fence,), 0, 0, ()))
    assert [grant.step for grant in sent(effects, Grant)][:1] == [1]


def test_in_lock_step_a_change_of_slots_or_rates_is_no_barrier() -> None:
    schedule = Schedule([segment(), segment(step=2, slots=4, offset=8, revision=1)])
    assert schedule.barrier(2) == 0
    schedule.append(segment(step=4, window=UNLIMITED, revision=2))
    assert (schedule.barrier(3), schedule.barrier(5)) == (0, 4)


def test_a_second_change_for_the_first_step_of_lock_step_keeps_its_barrier() -> None:
    schedule = Schedule([segment(window=3), segment(step=4, offset=8, revision=1)])
    schedule.append(segment(step=4, offset=8, revision=2))
    assert schedule.barrier(4) == 4


# ---------------------------------------------------------------- rewinds


@pytest.mark.parametrize("restarted", [False, True])
def test_later_rows_outlive_a_rewind(restarted: bool) -> None:
    job = trained(2, checkpoint_steps=2)
    made = save(job, 2).checkpoint
    job.core.completed(made.folder, "", job.now)
    job.finish_step(2)
    assert answer(set_dials(job, mode="ssp:1", lr_scale=0.5)).step == 4
    before = job.core.schedule.segments[-1]
    assert all(s.step < 4 for s in made.position.segments)
    if restarted:
        job.restart([made], resume=made.folder)
    else:
        job.say("engine", Exited(job.req(), "server-0", 1, -9))
    assert job.core.incarnation == 1
    assert job.core.schedule.segments[-1] == before
    assert job.core.schedule.segment(2).mode == "bsp"
    job.restart([made])
    assert job.core.schedule.segments[-1] == before, "the new incarnation begins with the later rows in its log"


def test_a_rewind_to_another_line_of_incarnations_changes_no_committed_step() -> None:
    """A checkpoint of incarnation 0 may be completed when incarnation 1, which began anew, has other segments."""
    job = trained(2, checkpoint_steps=2)
    made = save(job, 2).checkpoint
    book, args = job.core.tables.phases, job.job
    assert answer(set_dials(job, mode="ssp:1", slots=1)).step == 3
    plan_of_1 = [segment(data_len=80, slots=1, window=1, mode="ssp:1", end_step=40, revision=9)]
    book.reset(made.position)
    kept = book.keep_plan(plan_of_1, 2, args)
    assert [(s.step, s.mode, s.offset) for s in kept] == [(2, "bsp", 8), (3, "ssp:1", 12)]
    assert book.schedule.segment(1) == made.position.segments[0]


def test_a_phase_that_begins_again_has_the_changes_of_before() -> None:
    job = trained(2)
    assert answer(set_dials(job, mode="asp")).step == 3
    job.restart([], resume="")
    for server in job.servers:
        server_back(job, server, incarnation=0, epoch=0, applied=-2)
    worker_back(job, "worker-0", progress=-1)
    job.begin("worker-0", data_len=80)
    assert [(s.step, s.mode) for s in job.core.schedule.segments] == [(0, "bsp"), (3, "asp")]
