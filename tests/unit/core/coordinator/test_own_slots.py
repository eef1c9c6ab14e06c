"""One slot a rank: steps with as many slots as members, beside steps with other numbers."""

from __future__ import annotations

import random

import pytest
from tests.kit.core import CoordinatorKit, sent
from tests.kit.group import closings, commit_step, group_job, report_of

from paceline.core.effects import Effect
from paceline.messages import Close, GiveBack, Grant, Ready, Revoke
from paceline.types import INIT_STEP, Fence


def test_no_early_lease_while_a_slot_of_the_step_in_hand_is_free() -> None:
    job = group_job(workers=3, slots=4, data_len=14)  # a step of 4 slots, then one of 3
    grants = {worker: job.lease(worker) for worker in job.workers}
    for worker, grant in grants.items():
        assert not sent(job.turn(worker, held=(grant.fence,)), Grant)
    (last,) = sent(job.turn("worker-0", sealed=report_of(grants["worker-0"])), Grant, "worker-0")
    assert (last.step, last.slot) == (0, 3)


def test_the_first_step_is_leased_by_rank_also_before_the_initial_weights_are_committed() -> None:
    job = CoordinatorKit(workers=3, servers=3, slots=3, mode="allreduce", collective=True).start()
    assert job.lease("worker-0").step == INIT_STEP
    early = [job.lease(worker) for worker in ("worker-2", "worker-1")]
    assert [(grant.step, grant.slot) for grant in early] == [(0, 2), (0, 1)]


def test_a_worker_computes_its_own_slot_again_that_it_gave_back() -> None:
    """It holds a lease of the next step by then, and no other worker may take its slot."""
    job = group_job(workers=3, slots=3)
    mine = job.lease("worker-1")
    (later,) = sent(job.turn("worker-1", sealed=report_of(mine)), Grant, "worker-1")
    assert (later.step, later.slot) == (1, 1)
    job.say("worker-1", GiveBack(job.req(), mine.fence))
    (revoked,) = sent(job.wrote(job.core.tick(job.now)), Revoke, "worker-1")
    assert revoked.fence == later.fence
    again = job.lease("worker-1")
    assert (again.step, again.slot) == (0, 1)


def test_a_slot_behind_a_short_step_is_still_its_own_members() -> None:
    job = group_job(workers=3, slots=3, data_len=8, epochs=2)  # a step of 3 slots, then one of 1; then the next epoch
    commit_step(job, {worker: job.lease(worker) for worker in job.workers})
    short = job.lease("worker-1")
    assert (short.step, short.slots) == (1, 1)
    grants = {worker: sent(job.turn(worker), Grant, worker) for worker in ("worker-2", "worker-0")}
    assert {worker: [(g.step, g.slot) for g in found] for worker, found in grants.items()} == {
        "worker-2": [(2, 2)],
        "worker-0": [(2, 0)],
    }


class _Worker:
    def __init__(self) -> None:
        self.now: Grant | None = None
        self.next: Grant | None = None
        self.waits = self.asked = False


class _Run:
    """Workers that ask, ask early and seal in a random order; a step is committed when its closing is sealed."""

    def __init__(self, job: CoordinatorKit, seed: int) -> None:
        self.job = job
        self.rng = random.Random(seed)
        self.workers = {name: _Worker() for name in job.workers}
        self.closed: dict[int, Close] = {}
        self.sealed: dict[Fence, tuple[str, Grant]] = {}

    def take(self, effects: list[Effect]) -> None:
        for closing in closings(effects):
            self.closed[closing.step] = closing
        for name, worker in self.workers.items():
            assert not sent(effects, Revoke, name)
            for grant in sent(effects, Grant, name):
                if worker.now is None:
                    worker.now, worker.waits = grant, False
                elif grant.fence != worker.now.fence:
                    worker.next = grant

    def acts(self) -> list[tuple[str, str]]:
        found, low = [], self.job.core.watermark.low
        for name, worker in self.workers.items():
            if worker.now is None:
                found += [] if worker.waits else [("ask", name)]
            elif worker.now.step <= low:
                found.append(("seal", name))
                if worker.now.ask_next and not worker.asked and worker.next is None:
                    found.append(("ask early", name))
        closing = self.closed.get(low)
        if closing is not None and all(fence in self.sealed for fence in closing.fences):
            found.append(("commit", ""))
        return found

    def act(self, what: str, name: str) -> None:
        worker = self.workers.get(name, _Worker())
        if what == "commit":
            self.commit(self.closed[self.job.core.watermark.low])
        elif what == "ask":
            worker.waits = True
            self.take(self.job.turn(name))
        elif what == "ask early":
            assert worker.now is not None
            worker.asked = True
            self.take(self.job.turn(name, held=(worker.now.fence,)))
        else:
            assert worker.now is not None
            done = worker.now
            self.sealed[done.fence] = name, done
            worker.now, worker.next, worker.asked = worker.next, None, worker.next is not None
            worker.waits = worker.now is None
            held = () if worker.now is None else (worker.now.fence,)
            self.take(self.job.turn(name, sealed=report_of(done), held=held))

    def commit(self, closing: Close) -> None:
        for node in self.job.servers:
            names = [self.sealed[fence] for fence in closing.fences]
            mine = tuple(report_of(grant) for name, grant in names if name[7:] == node[7:])
            self.take(self.job.say(node, Ready(0, closing.epoch, closing.step, closing.fences, 0, 0, (), mine)))


@pytest.mark.parametrize(("workers", "slots"), [(2, 3), (3, 3), (3, 4), (2, 8)])
@pytest.mark.parametrize("data_len", [30, 26, 14])
def test_every_order_of_turns_ends(workers: int, slots: int, data_len: int) -> None:
    for seed in range(5):
        run = _Run(group_job(workers=workers, slots=slots, data_len=data_len), seed)
        while run.job.core.tables.phases.open is not None:
            acts = run.acts()
            assert acts, f"seed {seed}: nobody can go on at step {run.job.core.watermark.low}"
            run.act(*run.rng.choice(acts))
