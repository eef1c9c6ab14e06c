"""What a worker does between two turns: the batch is made while servers work, and leaves no trace in the seeds."""

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
from paceline.core.worker import WorkerState
from paceline.data.seeding import preserved, seed_all
from paceline.messages import Grant
from paceline.worker.job import Job

SEED = 11


class Noted(Dataset[Any]):
    """Draws at random, and notes what the worker was waiting for."""

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
    """Rows of 24 numbers; drawing at random on the way leaves them as they are."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.rand(3)
        random.random()
        np.random.rand()
        return torch.arange(24.0).view(8, 3)[index]


def draws() -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


def test_a_batch_is_made_while_the_state_is_on_its_way(job: Job) -> None:
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
            assert drawn == draws(), "the turn does not begin with the slot's seed"
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        seen.append((grant.step, grant.slot))
    assert seen == [(step, slot) for step in range(6) for slot in range(2)]
    first_slots = data.states[::4]
    assert set(first_slots[1:]) == {WorkerState.PULLING}, "the batch had to wait for the servers"


def test_a_batch_for_a_lease_that_became_void_is_dropped(job: Job) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    turns = job._turns
    loop = job.batches(Rows(), 2, slots=1, shuffle=False)
    first = next(loop)
    assert torch.equal(first, torch.arange(6.0).view(2, 3))
    grant = turns.grant
    assert grant is not None
    other = Grant(9, 1, 0, 1, 3, 0, 1, grant.fence, grant.segment, True)
    turns._seed_slot(grant)
    assert torch.equal(turns._make(other).content, torch.arange(18.0, 24.0).view(2, 3))
    assert torch.equal(turns._make(grant).content, first)
    turns._seed_slot(grant)
    drawn = draws()
    seed_all(slot_seed(SEED, grant.step, grant.slot))
    assert drawn == draws()
    model(first).sum().backward()
    optimizer.step()
    for batch in loop:
        model(batch).sum().backward()
        optimizer.step()
