"""Rule 22, the numbers ride on the seal: a commit needs no word of a worker that may be dead.

Weight, hyper-parameters and logged values travel with the sealing push and with *ready*. A turn lists the leases that
the worker has in hand, and may ask for the lease of its next turn while it computes. Only the coordinator makes leases.

Upheld by:
- `core.worker.dispatch.WorkerCore.push`: the report goes with the seal
- `core.server.attempts.Attempts`: and with *ready*
- `core.coordinator.commits.Commits.ready`: and counts
- `core.coordinator.tables.leases.LeaseBook.abandon_open`: leases that a turn lists stay
- `core.coordinator.offers.Offers.offer_next`: the lease of the next turn
- `core.coordinator.early_turns.EarlyTurns.ended`: a listed lease that has ended is revoked
"""

from __future__ import annotations

import msgspec
import pytest
from tests.kit.core import HYPER, CoordinatorKit, ServerKit, fence, segment, sent, state_of, turn_of, written
from tests.kit.worker_core import WorkerKit

from paceline.core.effects import Effect, LogRow, Send, WarningFact
from paceline.core.worker.dispatch import Connect, Fill
from paceline.core.worker.turn import WorkerState
from paceline.messages import (
    Bye,
    Declare,
    EvalGrant,
    Grant,
    Pull,
    PullReply,
    Ready,
    Revoke,
    Sealed,
    Turn,
    ValidatorSpec,
)
from paceline.types import Commit


def report_of(grant: Grant, **changes: object) -> Sealed:
    report = Sealed(grant.step, grant.slot, grant.fence, 1.0, HYPER, {"loss": 2.0}, 0.1)
    return msgspec.structs.replace(report, **changes)


def job_of(workers: int = 2, slots: int = 2, **changes: object) -> CoordinatorKit:
    return CoordinatorKit(workers=workers, servers=1, slots=slots, **changes).start().initialise()  # type: ignore[arg-type]


def ready(job: CoordinatorKit, step: int, *reports: Sealed) -> list[Effect]:
    message = Ready(0, job.core.tables.placed.epoch, step, tuple(r.fence for r in reports), 0, 0, (), reports)
    return job.say("server-0", message)


# ---------------------------------------------------------------- reports


def test_a_step_commits_by_the_reports_of_servers_when_its_workers_are_dead() -> None:
    job = job_of()
    reports = [report_of(job.lease(worker)) for worker in job.workers]
    for worker in job.workers:
        job.core.lost(worker, "killed", job.now)
    (commit,) = written(ready(job, 0, *reports), Commit)
    assert (commit.step, commit.fences, commit.hyper) == (0, tuple(r.fence for r in reports), HYPER)


def test_logged_values_and_warnings_of_such_a_report_count() -> None:
    job = job_of()
    first, second = (job.lease(worker) for worker in job.workers)
    effects = ready(job, 0, report_of(first), report_of(second, logs={"loss": 4.0}, warnings={"topic": "a warning"}))
    (row,) = written(effects, LogRow)
    assert row.values == {"loss": 3.0}
    assert [fact.text for fact in written(effects, WarningFact)] == ["a warning"]


def test_the_word_of_the_worker_that_comes_after_the_commit_wastes_nothing() -> None:
    job = job_of()
    first, second = (job.lease(worker) for worker in job.workers)
    ready(job, 0, report_of(first), report_of(second))
    assert job.core.version == 1
    job.seal("worker-0", first)
    assert job.core.totals.wasted_slots == 0


def test_a_server_adds_the_reports_to_ready_if_it_has_the_first_block() -> None:
    kit = ServerKit(segment(slots=2))
    reports = [Sealed(0, slot, fence(5 + slot), 1.0, HYPER, {}, 0.1) for slot in range(2)]
    kit.push(0, 0, 5, report=reports[0])
    (said,) = sent(kit.push(0, 1, 6, report=reports[1]), Ready)
    assert said.reports == tuple(reports)


def test_a_sealing_push_has_the_report_of_its_slot() -> None:
    kit = WorkerKit()
    kit.computing(step=0)
    assert [push.report for push in kit.push()] == [kit.report()] * 2
    assert [push.report for push in kit.push(seal=False)] == [None] * 2


# ---------------------------------------------------------------- leases that a turn lists


def early(job: CoordinatorKit, worker: str, *held: Grant) -> list[Grant]:
    return sent(job.turn(worker, held=tuple(grant.fence for grant in held)), Grant, worker)


def test_a_worker_gets_the_lease_of_its_next_turn_while_it_computes() -> None:
    job = job_of()
    first, second = (job.lease(worker) for worker in job.workers)
    assert (first.ask_next, second.ask_next) == (True, True)
    (after,) = early(job, "worker-0", first)
    assert after.step == 1
    assert job.core.tables.leases.live.is_open(first.fence), "a lease that the turn lists stays"


def test_a_lease_that_the_turn_does_not_list_is_free_again() -> None:
    job = job_of()
    first = job.lease("worker-0")
    again = job.lease("worker-1")
    job.turn("worker-0")
    assert not job.core.tables.leases.live.is_open(first.fence)
    assert job.core.tables.leases.live.is_open(again.fence)


def test_no_second_slot_of_the_same_step_is_leased_early() -> None:
    """The slots of a step go to whoever is free: load balances itself."""
    job = job_of(slots=4)
    first = job.lease("worker-0")
    assert not first.ask_next
    assert early(job, "worker-0", first) == []
    assert job.lease("worker-1").slot == 1


def test_an_early_lease_follows_with_the_commit_that_allows_it() -> None:
    job = job_of()
    first, second = (job.lease(worker) for worker in job.workers)
    (third,) = early(job, "worker-0", first)
    assert len(early(job, "worker-1", second)) == 1
    effects = job.seal("worker-0", first, held=(third.fence,))
    assert sent(effects, Grant, "worker-0") == [], "step 2 waits for the commit of step 0"
    after = ready(job, 0, report_of(first), report_of(second))
    assert [grant.step for grant in sent(after, Grant, "worker-0")] == [2]


@pytest.mark.parametrize("mode", ["ssp:3", "asp"])
def test_with_a_window_nothing_is_leased_early(mode: str) -> None:
    job = CoordinatorKit(workers=1, servers=1, mode=mode).start().initialise()
    grant = job.lease("worker-0")
    assert not grant.ask_next
    assert early(job, "worker-0", grant) == []


def test_unequal_machines_get_nothing_early() -> None:
    job = (
        CoordinatorKit(workers=2, servers=1, slots=2, machines={"worker-0": "a CPU", "worker-1": "another"})
        .start()
        .initialise()
    )
    grant = job.lease("worker-0")
    assert not grant.ask_next
    assert early(job, "worker-0", grant) == []


def test_validation_comes_before_early_leases() -> None:
    job = CoordinatorKit(workers=2, servers=1, slots=2).start(begin=False)
    for worker in job.workers:
        job.say(worker, Declare(job.req(), ValidatorSpec(0, "accuracy", 1, 4, 4)))
        job.begin(worker)
    job.initialise()
    first, second = (job.lease(worker) for worker in job.workers)
    (third,) = early(job, "worker-0", first)
    assert len(early(job, "worker-1", second)) == 1
    ready(job, 0, report_of(first), report_of(second))
    assert early(job, "worker-0", third) == []
    assert sent(job.turn("worker-0", declared=1), EvalGrant, "worker-0")


# ---------------------------------------------------------------- leases that have ended


def test_a_repeated_turn_is_told_which_of_its_leases_has_ended() -> None:
    """The first word may be lost, and the worker would wait for ever for a state that does not come."""
    job = job_of(slots=1)
    first = job.lease("worker-0")
    turn = Turn(job.req(), 0, 0, held=(first.fence,))
    job.say("worker-0", turn)
    job.core.tables.leases.abandon(first.fence)
    (revoke,) = sent(job.say("worker-0", turn), Revoke)
    assert revoke.fence == first.fence


def test_a_lower_slot_that_comes_back_takes_the_early_lease_of_a_worker_that_only_waits() -> None:
    job = job_of()
    first, second = (job.lease(worker) for worker in job.workers)
    (third,) = early(job, "worker-0", first)
    job.say("worker-1", Bye(job.req()))
    effects = job.seal("worker-0", first, held=(third.fence,))
    (revoke,) = sent(effects, Revoke, "worker-0")
    assert revoke.fence == third.fence
    assert job.lease("worker-0").slot == second.slot


# ---------------------------------------------------------------- the worker


class EarlyWorker(WorkerKit):
    """A worker that computes slot 0 of step 0 and has asked for its next lease."""

    def __init__(self) -> None:
        super().__init__()
        self.core.ask(self.now, 0)
        self.asked: list[Turn] = []
        for send in self.grant_early(0, 5):
            if isinstance(send, Send) and isinstance(send.message, Pull):
                self.asked += sent(self.hear(PullReply(send.message.req, 0, 0, 0, ()), sender=send.to), Turn)

    def grant_early(self, step: int, counter: int) -> list[Send | Fill | Connect]:
        turn = turn_of(self.core)
        return self.hear(Grant(turn.req, 1, 0, 1, step, 0, 2, fence(counter), segment(), False, {}, True))


def test_a_worker_asks_for_its_next_lease_when_it_begins_to_compute() -> None:
    kit = EarlyWorker()
    assert [turn.held for turn in kit.asked] == [(fence(5),)]


def test_a_worker_reads_the_state_of_its_next_turn_as_soon_as_it_has_sealed() -> None:
    kit = EarlyWorker()
    kit.grant_early(1, 6)
    assert state_of(kit.core) == WorkerState.COMPUTING
    sends = kit.core.sealed(kit.now, kit.core.turn.report(1.0, HYPER, {}, 0.1))
    assert [type(send.message) for send in sends] == [Pull, Pull, Turn], "servers first: the turn waits for them"
    (turn,) = sent(sends, Turn)
    assert turn.held == (fence(6),)
    assert turn.sealed is not None
    assert {(pull.exact, pull.ahead) for pull in sent(sends, Pull)} == {(1, True)}


def test_an_early_lease_that_is_revoked_is_not_used() -> None:
    kit = EarlyWorker()
    kit.grant_early(1, 6)
    (turn,) = sent(kit.hear(Revoke(1, fence(6))), Turn)
    assert turn.held == (fence(5),), "it asks again"
    (turn,) = sent(kit.core.sealed(kit.now, kit.core.turn.report(1.0, HYPER, {}, 0.1)), Turn)
    assert turn.held == ()


@pytest.mark.parametrize("news", ["placement", "coordinator"])
def test_an_early_lease_of_another_placement_or_coordinator_is_not_used(news: str) -> None:
    kit = EarlyWorker()
    kit.grant_early(1, 6)
    if news == "placement":
        kit.core.place(kit.prepared(2, "s0", "s1"))
    else:
        kit.core.reconnected(kit.now)
    (turn,) = sent(kit.core.sealed(kit.now, kit.core.turn.report(1.0, HYPER, {}, 0.1)), Turn)
    assert turn.held == ()
