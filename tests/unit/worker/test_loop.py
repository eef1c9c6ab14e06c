"""Between two turns the worker makes the next batch while servers work; the slot's random numbers stay the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import paceline
from paceline.core.sampling import slot_seed
from paceline.core.worker.turn import WorkerState
from paceline.data.seeding import preserved, seed_all
from paceline.messages import Claim, Claimed, Grant
from paceline.worker.job import Job

SEED = 11


class Noted(Dataset[Any]):
    """Draws random numbers, and notes the worker's state at each sample."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.states: list[WorkerState] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        self.states.append(self.job._session.core.state)
        return torch.full((3,), index + torch.rand(()).item() + random.random() + float(np.random.rand()))


@pytest.fixture
def job() -> Iterator[Job]:
    with paceline.join(seed=SEED) as joined:
        yield joined


class Rows(Dataset[Any]):
    """Rows of 24 numbers. Draws random numbers, which do not change the rows."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.rand(3)
        random.random()
        np.random.rand()
        return torch.arange(24.0).view(8, 3)[index]


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def test_a_batch_is_made_while_the_state_is_read(job: Job) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    data = Noted(job)
    seen = []
    for batch in job.batches(data, 2, slots=2, epochs=2):
        drawn = draws()
        grant = job._session.core.task
        assert isinstance(grant, Grant)
        with preserved():
            seed_all(slot_seed(SEED, grant.step, grant.slot))
            assert drawn == draws(), "the turn must begin with the slot's seed"
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        seen.append((grant.step, grant.slot))
    assert seen == [(step, slot) for step in range(6) for slot in range(2)]
    first_slots = [state for state in data.states if state != WorkerState.IDLE][::4]  # the loop begins in state IDLE
    assert set(first_slots[1:]) == {WorkerState.PULLING}, "the batch had to wait for the servers"


def test_a_batch_for_a_void_lease_is_dropped(job: Job) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    assert job._loop is not None
    loop = job.batches(Rows(), 2, slots=1, shuffle=False)
    first = next(loop)
    assert torch.equal(first, torch.arange(6.0).view(2, 3))
    grant, prefetch = job._loop.turn.grant, job._loop._prefetch
    assert grant is not None
    assert prefetch is not None
    other = Grant(9, 1, 0, 1, 3, 0, 1, grant.fence, grant.segment, True)
    prefetch.prepare(other)
    assert torch.equal(prefetch.take(grant).content, first), "the batch must not be that of the other lease"
    prefetch.prepare(other)
    assert torch.equal(prefetch.take(other).content, torch.arange(18.0, 24.0).view(2, 3))
    prefetch.prepare(other)
    prefetch.take(grant)
    prefetch.seed_turn(grant)
    drawn = draws()
    seed_all(slot_seed(SEED, grant.step, grant.slot))
    assert drawn == draws()
    model(first).sum().backward()
    optimizer.step()
    for batch in loop:
        model(batch).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("moved_on", [False, True])
def test_a_slot_that_is_leased_again_is_computed_again_only_on_another_version(
    job: Job, monkeypatch: pytest.MonkeyPatch, moved_on: bool
) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    assert job._loop is not None
    turn, sent_again = job._loop.turn, []
    core = job._session.core
    loop = job.batches(Rows(), 2, slots=1, shuffle=False)
    first = next(loop)
    grant = turn.grant
    assert grant is not None
    model(first).sum().backward()
    optimizer.step()
    next_task = job._loop.next_task

    monkeypatch.setattr(turn._reducer, "seal_again", lambda report, kept: sent_again.append((report.slot, kept)))
    with monkeypatch.context() as patched:

        def again() -> Grant:
            patched.setattr(job._loop, "next_task", next_task)
            for server in core.model.by_server:
                core.model.fill(server, 0 if not moved_on else 1)
            return grant

        patched.setattr(core, "sealed", lambda *report: [])
        patched.setattr(job._loop, "next_task", again)
        second = next(loop)
    assert sent_again == ([] if moved_on else [(grant.slot, False)])
    assert torch.equal(second, first) == moved_on
    del loop


def test_blocks_that_arrive_during_a_request_after_step_stay_for_the_next_read(job: Job) -> None:
    """The model does not change within a turn, and has the blocks before the next turn begins or the loop ends."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    session = job._session
    expected = [p.detach().clone() for p in model.parameters()]

    def is_expected() -> bool:
        return all(torch.allclose(p, e) for p, e in zip(model.parameters(), expected, strict=True))

    turns = 0
    for batch in job.batches(Rows(), 2, slots=1, epochs=2, shuffle=False):
        assert is_expected(), "the turn began before the blocks were in the model"
        turns += 1
        optimizer.zero_grad()
        model(batch).sum().backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        if turns == 3:
            job.stop()
        for attempt in range(20):  # each request handles the messages that arrive before its answer
            if session._fills:
                break
            session.ask(lambda req: Claim(req, f"turn {turns}, attempt {attempt}"), Claimed)  # noqa: B023
        assert session._fills, "no block arrived during the requests"
        assert is_expected(), "the model changed within the turn"
        expected = [e - 0.1 * g for e, g in zip(expected, gradients, strict=True)]
    assert turns == 3
    assert is_expected(), "the loop ended before the blocks were in the model"
