"""The gradient at `step()` counts, also if another one was pushed before the seal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.kit.pushing_worker import PushingWorker, clipped, nothing, taken_away, three_layers


@pytest.fixture
def worker() -> Iterator[PushingWorker]:
    made = PushingWorker(three_layers())
    yield made
    made.close()


def one_number_unseen(worker: PushingWorker) -> None:
    grad = worker.binding.parameters[2].tensor.grad
    assert grad is not None
    grad.data[17, 3] += 1.0


def sign_of_zero_unseen(worker: PushingWorker) -> None:
    grad = worker.binding.parameters[2].tensor.grad
    assert grad is not None
    at = (grad == 0).nonzero()[-1]  # not in the first block, which waits for the layer before it
    grad.data[at[0], at[1]] = -0.0 if not torch.signbit(grad[at[0], at[1]]) else 0.0


def replaced(worker: PushingWorker) -> None:
    worker.binding.parameters[2].tensor.grad = torch.randn(400, 400)


def backward_again(worker: PushingWorker) -> None:
    worker.backward()


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (nothing, False),
        (clipped, True),
        (one_number_unseen, True),
        (sign_of_zero_unseen, True),
        (replaced, True),
        (taken_away, True),
        (backward_again, True),
    ],
)
def test_the_gradient_at_the_seal_counts_and_not_an_offered_one(
    worker: PushingWorker, change: Callable[[PushingWorker], None], again: bool
) -> None:
    for _ in range(3):
        worker.begin()
        worker.backward()
        worker.talk()
        ahead = [push for server in worker.servers for push in server.pushes]
        assert ahead, "nothing was pushed before the seal"
        assert all(push.seal is None for push in ahead)
        change(worker)
        worker.seal()
        worker.check()
        sent = [frame.block for server in worker.servers for push in server.pushes for frame in push.blocks]
        assert bool(worker.reducer.resent) == again
        assert (len(sent) > len(set(sent))) == again
        for server in worker.servers:
            server.drop()
