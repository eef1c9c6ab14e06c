"""Rule 23, what the script sees: a job in lock-step does not end below a version that a script computes on.

`break` names that version, committed or not. A sealed gradient stays in memory until its step is known to be committed,
so that a failover before the commit computes nothing again: a worker has two sets of gradients in that time.

Upheld by:
- `core.coordinator.segments.Segments.stop`: where a job ends at once
- `reducers.servers.ServersReducer.begin`: the set of the turn before is kept
- `reducers.servers.ServersReducer.seal_again`: and pushed again
- `worker.last_sealed_turn.SealedTurn.counts_on`: which turn may be pushed again
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.kit.core import CoordinatorKit, segment
from tests.kit.pushing_worker import PushingWorker
from torch import nn

from paceline.messages import Grant, Stop
from paceline.types import Fence
from paceline.worker.last_sealed_turn import SealedTurn


def begun() -> CoordinatorKit:
    """A job whose first step is leased, and of which nobody has reported a sealed slot."""
    job = CoordinatorKit(workers=2, servers=1, slots=2).start().initialise()
    for worker in job.workers:
        job.lease(worker)
    return job


def test_a_job_does_not_end_below_the_version_that_the_caller_computes_on() -> None:
    """The caller has read version 1 ahead of its commit: servers have step 0, the coordinator does not know it yet."""
    job = begun()
    job.say("worker-0", Stop(job.req(), "break", 1, at_once=True))
    assert job.core.machines.segments.limit == 1


def test_a_caller_on_version_0_ends_the_job_there() -> None:
    job = begun()
    job.say("worker-0", Stop(job.req(), "break", 0, at_once=True))
    assert job.core.machines.segments.limit == 0


def test_a_job_ends_below_it_if_nobody_computes_that_step_again() -> None:
    """A change of placement voided step 0; a worker that has left its loop was leased it, and says so."""
    job = begun()
    job.say("worker-0", Stop(job.req(), "break", 1, at_once=True))
    job.say("worker-0", Stop(job.req(), "break", 0, at_once=True))
    assert job.core.machines.segments.limit == 0


# ---------------------------------------------------------------- two sets of gradients


@pytest.fixture
def worker() -> Iterator[PushingWorker]:
    torch.manual_seed(0)
    made = PushingWorker(nn.Sequential(nn.Linear(40, 400), nn.ReLU(), nn.Linear(400, 10)))
    yield made
    made.close()


def seal_turn(worker: PushingWorker, *, keep: bool) -> dict[int, bytes]:
    for server in worker.servers:
        server.drop()
    worker.begin(keep=keep)
    worker.backward()
    worker.seal()
    return gradients(worker)


def gradients(worker: PushingWorker) -> dict[int, bytes]:
    """What the servers have of each block."""
    found: dict[int, bytes] = {}
    for server in worker.servers:
        seal = server.attempt.seal
        assert seal is not None
        for index, _ in seal.revs:
            payload = server.attempt.payloads[index]
            assert isinstance(payload, memoryview)
            found[index] = bytes(payload)
    return found


def test_the_turn_before_is_pushed_again_with_its_own_bits(worker: PushingWorker) -> None:
    seal_turn(worker, keep=False)
    first = seal_turn(worker, keep=True)
    second = seal_turn(worker, keep=True)
    assert first != second
    for server in worker.servers:
        server.drop()
    worker.lease(Fence(1, 77))
    worker.reducer.seal_again(worker.report(), kept=True)
    worker.talk()
    assert gradients(worker) == first


# ---------------------------------------------------------------- which turn may be sealed again


def turn_on(version: int, ahead: int) -> SealedTurn:
    grant = Grant(1, 1, 0, 1, 3, 0, 2, Fence(1, 5), segment(), False)
    return SealedTurn(grant, version, ahead, 1.0, (), {}, 0.1, {})


@pytest.mark.parametrize(
    ("ahead", "epoch", "again"),
    [(0, 2, True), (1, 1, True), (1, 2, False)],
    ids=["its state was committed", "the epoch goes on", "its state was never committed"],
)
def test_a_turn_is_sealed_again_only_if_its_state_is_committed_or_still_named(
    ahead: int, epoch: int, again: bool
) -> None:
    assert turn_on(3, ahead).counts_on(3, epoch) == again
    assert not turn_on(3, ahead).counts_on(4, epoch)
    assert turn_on(3, ahead).counts_on(3, epoch, (1, 3)), "its state was committed after all"
