"""An optimizer over the pieces of a tensor gives the bits of one over the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kit.server import NUMBERS

from paceline.blocks.torch_optimizers import PieceOptimizer, optimizer_class
from paceline.config.dials import OPTIMIZERS
from paceline.errors import UsageError
from paceline.types import Hyper, OptimizerSpec

CUT = [64, 320, 616]  # at multiples of 64, as blocks are cut


def _hyper(kind: type[torch.optim.Optimizer], numbers: dict[str, Any]) -> Hyper:
    defaults = kind([torch.nn.Parameter(torch.zeros(1))], **numbers).defaults
    return ({k: float(v) if isinstance(v, torch.Tensor) else v for k, v in defaults.items()},)


@pytest.mark.parametrize(("name", "numbers"), NUMBERS, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_the_pieces_of_a_tensor_get_the_bits_of_the_whole_tensor(name: str, numbers: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind = optimizer_class(name)
    whole = torch.nn.Parameter(torch.randn(1000))
    plain = kind([whole], **numbers)
    pieces = [p.clone() for p in torch.split(whole.detach(), CUT)]
    spec = OptimizerSpec(name, _hyper(kind, numbers))
    ours = PieceOptimizer(spec, [0, 0, 0], pieces)
    for step in range(5):
        rate = 0.1 / (1 + step)
        grad = torch.randn(1000)
        plain.param_groups[0]["lr"] = rate
        whole.grad = grad if step != 2 else None
        plain.step()
        parts: list[torch.Tensor | None] = list(torch.split(grad, CUT)) if step != 2 else [None] * 3
        ours.step(({**spec.hyper[0], "lr": rate},), pieces, parts)
        assert torch.equal(torch.cat(pieces), whole.detach()), f"step {step}"


def test_param_groups_keep_their_own_hyper_parameters() -> None:
    hyper = tuple(_hyper(torch.optim.SGD, {"lr": lr})[0] for lr in (0.0, 0.5, 1.0))
    pieces = [torch.zeros(2) for _ in range(3)]
    ours = PieceOptimizer(OptimizerSpec("SGD", hyper), [2, 1, 2], pieces)
    ours.step(hyper, pieces, [torch.ones(2), torch.ones(2), None])
    assert [p.tolist() for p in pieces] == [[-1.0, -1.0], [-0.5, -0.5], [0.0, 0.0]]


def test_supported_optimizers_are_found_by_name_and_others_are_refused() -> None:
    assert [optimizer_class(name).__name__ for name in OPTIMIZERS] == list(OPTIMIZERS)
    with pytest.raises(UsageError, match="LBFGS does not run on servers; use one of SGD, Adam"):
        optimizer_class("LBFGS")
