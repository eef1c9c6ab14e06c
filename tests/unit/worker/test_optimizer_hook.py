"""`optimizer.step()` of the prepared optimizer calls the seal."""

from __future__ import annotations

import pytest
import torch

from paceline.errors import LoopError
from paceline.worker.optimizer_hook import attach


def _optimizer() -> tuple[torch.nn.Module, torch.optim.SGD]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_an_optimizer_is_prepared_once() -> None:
    _, optimizer = _optimizer()
    attach(optimizer, lambda skipped: None)
    with pytest.raises(ValueError, match="prepared already"):
        attach(optimizer, lambda skipped: None)


def test_step_calls_the_seal() -> None:
    sealed: list[bool] = []
    model, optimizer = _optimizer()
    before = model.state_dict()["weight"].clone()
    attach(optimizer, sealed.append)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert sealed == [False]
    assert torch.equal(model.state_dict()["weight"], before), "the servers apply the update, so the local weights stay"
    with pytest.raises(LoopError, match="closure"):
        optimizer.step(lambda: 1.0)
