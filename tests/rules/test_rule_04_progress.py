"""Rule 4, progress: every slot is computed in the end, with bounded memory, or the job fails and names its samples.

An empty turn seals the slot with weight 0. A slot that loses too many holders in a row fails the job. Slots are leased
only within `hold` slots of the lowest one not yet summed, and a replacement can always enter.

Upheld by:
- `core.coordinator.tables.leases.LeaseBook.grant`: the hold
- `core.coordinator.tables.lost_holders.LostHolders.add`: a slot that loses several holders in a row fails the job
- `core.coordinator.tables.leases.LeaseBook.take_back`: a lease that can only wait makes room for an unleased slot
- `core.worker.required_state.wanted`: no worker waits for itself
"""

from __future__ import annotations

from tests.kit.core import (
    CoordinatorKit,
    ServerKit,
    fence,
    segment,
    sent,
    turn_of,
)
from tests.kit.worker_core import ASP, WorkerKit

from paceline.core.coordinator.tables.leases import LeaseBook
from paceline.core.coordinator.tables.live_leases import Lease
from paceline.core.sampling import Order
from paceline.core.schedule import Schedule
from paceline.messages import (
    Abort,
    GiveBack,
    Grant,
    Ok,
    Pull,
    Refused,
    Revoke,
    Summed,
    Turn,
)


def test_hold_advances_with_what_the_servers_have_summed() -> None:
    job = CoordinatorKit(workers=3, servers=2, slots=6, hold=2).start(data_len=24).initialise()
    grants = [job.lease(w) for w in job.workers[:2]]
    assert job.turn("worker-2") == []
    for worker, grant in zip(job.workers, grants, strict=False):
        assert sent(job.seal(worker, grant), Grant) == []
    assert job.say("server-0", Summed(0, 1, 0, 1)) == []
    assert [g.slot for g in sent(job.say("server-1", Summed(0, 1, 0, 2)), Grant)] == [2]


def test_a_poisoned_slot_fails_the_job_and_names_its_samples() -> None:
    job = CoordinatorKit(workers=3, slots=2, max_losses=3).start().initialise()
    for worker in job.workers[:2]:
        job.lease(worker)
        assert sent(job.core.lost(worker, "killed", job.now), Abort) == []
    job.lease("worker-2")
    job.core.lost("worker-2", "killed", job.now)
    assert job.core.failure is not None
    assert "slot 0 of step 0 ended 3 workers in a row (worker-0, worker-1, worker-2)" in job.core.failure.reason
    assert job.core.tables.identity.job is not None
    first, second = Order(job.core.tables.identity.job.seed).samples(job.core.schedule.segment(0), 0, 0)
    assert f"its samples are {first}, {second} (indices into the data set" in job.core.failure.reason


def test_an_empty_slot_counts_with_weight_0() -> None:
    server = ServerKit()
    server.push(0, 0, 5, revs={}, weight=0.0)
    server.push(0, 1, 6)
    assert server.store.added[1][1:] == (0.0, {})
    assert len(server.store.added) == 3


def test_slots_given_back_in_any_order_are_all_leased_again() -> None:
    job = CoordinatorKit(slots=1, mode="asp").start(data_len=40).initialise()
    grants = []
    for _ in range(2):
        grants.append(job.lease("worker-0"))
        job.seal("worker-0", grants[-1])
    first, second = (GiveBack(job.req(), g.fence) for g in grants)
    assert len(sent(job.say("worker-0", second), Ok)) == 1
    assert len(sent(job.say("worker-0", first), Ok)) == 1, "the request was sent earlier and arrives later"
    assert {job.lease("worker-1").step, job.lease("worker-1").step} == {g.step for g in grants[:1]}


def test_a_worker_that_waits_on_a_void_lease_gets_another_one() -> None:
    job = CoordinatorKit(slots=1).start().initialise()
    dead = job.lease("worker-0")
    early = Turn(job.req(), 0, 0)
    (waiting,) = sent(job.say("worker-1", early), Grant)
    assert (dead.step, waiting.step) == (0, 1)
    effects = job.core.lost("worker-0", "killed", job.now)
    assert [m.fence for m in sent(effects, Revoke, "worker-1")] == [waiting.fence]
    (other,) = sent(job.say("worker-1", early), Grant)  # the revocation was lost, so the worker only asks again
    assert other.step == 0
    assert other.fence > waiting.fence


def test_a_worker_does_not_wait_for_a_step_that_it_sealed_for_an_earlier_coordinator() -> None:
    """The new coordinator may not count that seal, and may have leased the step to a worker that waits for this one."""
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    kit.hear(Revoke(2, fence(99)))  # a message of another coordinator
    kit.push()
    kit.seal()
    out = kit.hear(Grant(turn_of(kit.core).req, 2, 0, 1, 4, 0, 1, fence(9), ASP, False))
    assert {pull.after for pull in sent(out, Pull)} == {-2}


def test_a_worker_never_waits_for_its_own_step_while_other_workers_hold_slots_of_it() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=2)
    kit.seal()
    assert {p.after for p in sent(kit.grant(3, of=ASP), Pull)} == {-2}


def test_a_worker_that_waits_on_a_void_lease_takes_the_next_grant() -> None:
    kit = WorkerKit()
    kit.core.ask(0.0, 0)
    kit.grant(4, 5)
    assert kit.grant(4, 5) == [], "a repeated grant is ignored"
    assert kit.grant(3, 4) == [], "an older grant that arrives late is ignored"
    assert {p.exact for p in sent(kit.grant(3, 6), Pull)} == {3}
    assert {p.exact for p in sent(kit.over(3), Pull)} == {3}
    assert kit.grant(5, 9) == [], "a grant after the end is ignored"


def test_a_worker_does_not_wait_for_a_slot_that_it_gave_back() -> None:
    kit = WorkerKit()
    kit.computing(3, of=ASP, slots=1)
    push, _ = kit.push()
    kit.seal()
    kit.grant(9, 6, of=ASP, slots=1)
    out = kit.hear(Refused(push.req, "stale", "too old"), "s0")
    assert len(sent(out, GiveBack)) == 1
    (turn,) = sent(out, Turn)
    assert turn.abandoned == fence(6), "the step that it waits to read lost its slot"
    assert {p.after for p in sent(kit.grant(3, 7, of=ASP, slots=1), Pull)} == {-2}


def held_twice(book: LeaseBook, worker: str, watermark: int = 0) -> tuple[Lease, Lease]:
    """Lease a slot to `worker`, and one of the next step for its next turn."""
    lease = book.grant(worker, watermark, True, 9)
    assert lease is not None
    early = book.grant(worker, watermark, True, 9, above=lease.slot.step)
    assert early is not None
    return lease, early


def test_only_the_slot_in_hand_counts_the_loss_of_its_holder() -> None:
    """A worker has not begun the slot of its next turn, so that slot did not end it."""
    book = LeaseBook(Schedule([segment(slots=1, end_step=9)]), 1, hold=2, max_losses=3)
    book.reset(book.schedule, 0, initialised=True)
    for number in range(2):
        held_twice(book, f"worker-{number}")
        assert book.revoke(f"worker-{number}").poisoned is None
    lease, early = held_twice(book, "worker-2")
    book.seal(lease.fence, "worker-2")
    assert book.revoke("worker-2").poisoned is None, "the third holder of the first slot has sealed it"
    for number in range(3, 6):
        held_twice(book, f"worker-{number}", watermark=1)
        poisoned = book.revoke(f"worker-{number}").poisoned
    assert poisoned is not None
    assert poisoned.slot.step == early.slot.step, "the slot that three holders in a row had in hand"
