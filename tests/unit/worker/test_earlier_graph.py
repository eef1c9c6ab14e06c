"""A graph that reaches back before a turn is told from one that does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.worker.earlier_graph import next_number, reaches_before
from paceline.worker.script_errors import add_remedy, remedy


class Twice(torch.autograd.Function):
    """A function of a script."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def test_a_hidden_state_of_an_earlier_turn_is_found() -> None:
    model = nn.RNN(2, 3)
    x = torch.randn(4, 1, 2)
    _, state = model(x)
    first = next_number()
    assert reaches_before(model(x, state)[0].sum(), first)
    assert not reaches_before(model(x, state.detach())[0].sum(), first), "a detached state leaves no trace"
    assert not reaches_before(model(x)[0].sum(), first)


def test_what_a_turn_computes_itself_is_not_found() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    parameter = nn.Parameter(torch.ones(3))
    with torch.no_grad():
        constant = parameter * 2
    first = next_number()
    x = torch.randn(4, 3)
    assert not reaches_before(x.sum(), first), "a tensor without a graph"
    assert not reaches_before((model(x) * constant).sum(), first)
    assert not reaches_before(Twice.apply(parameter).sum(), first)  # type: ignore[no-untyped-call]
    assert not reaches_before(checkpoint(model, x, use_reentrant=False).sum(), first)
    with torch.no_grad():
        assert next_number() > first


def test_the_walk_through_a_large_graph_ends() -> None:
    value = torch.ones((), requires_grad=True)
    old = value * 1
    first = next_number()
    for _ in range(60):
        old = old + old
    assert reaches_before(old, first)


def test_only_torchs_error_about_the_graph_has_a_remedy() -> None:
    assert remedy(ValueError("backward through the graph a second time")) is None
    assert remedy(RuntimeError("out of memory")) is None
    error = RuntimeError("Trying to backward through the graph a second time (or directly …)")
    add_remedy(error)
    add_remedy(error)
    (note,) = error.__notes__
    assert "Begin such state anew in each turn" in note
