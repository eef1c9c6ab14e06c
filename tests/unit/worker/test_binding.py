"""A model as blocks: what is staged is what was computed, and what is filled is what was sent."""

from __future__ import annotations

import torch
from torch import nn

from paceline.blocks import piece_of
from paceline.messages import BlockFrame
from paceline.types import Kind
from paceline.worker.binding import Binding


def _bound(model: nn.Module) -> Binding:
    trained = [p for p in model.parameters() if p.requires_grad]
    return Binding(model, torch.optim.SGD(trained, lr=0.1), None)


def test_a_version_goes_out_and_comes_in_again() -> None:
    class Model(nn.Module):
        steps: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.turned = nn.Parameter(torch.randn(7, 5).t())
            self.fixed = nn.Parameter(torch.randn(3), requires_grad=False)
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("steps", torch.tensor([3, 4]))

    torch.manual_seed(0)
    source, target = Model(), Model()
    out, into = _bound(source), _bound(target)
    assert out.spec == into.spec
    stage = out.new_stage()
    blocks = out.stage_initial(stage)
    assert {b.kind for b in blocks} == set(Kind)
    frames = [BlockFrame(b.index, b.dtype, b.numel) for b in blocks]
    into.fill(frames, [stage.frames[b.index] for b in blocks])
    for (name, a), b in zip(source.state_dict().items(), target.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_what_a_turn_did_not_touch_is_absent() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1), nn.BatchNorm1d(1))
    binding = _bound(model)
    binding.begin_turn()
    model[1](model[0](torch.randn(4, 3))).sum().backward()
    stage = binding.new_stage()
    absent, carrying = binding.stage(stage)
    names = [t.name for t in binding.spec.tensors]
    assert {names[n] for n in absent} == {
        "2.weight", "2.bias", "3.weight", "3.bias", "3.running_mean", "3.running_var", "3.num_batches_tracked",
    }  # fmt: skip
    for block in carrying:
        for piece in block.pieces:
            content = piece_of(stage.buffers[block.index], piece)
            if piece.tensor in absent and block.kind == Kind.PARAMETER:
                assert torch.equal(content, torch.zeros_like(content))
                assert torch.signbit(content).all(), "only -0.0 leaves every sum as it is"


def test_every_turn_starts_from_the_buffers_of_the_version() -> None:
    model = nn.BatchNorm1d(2)
    binding = _bound(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(8, 2))
    model.running_mean = torch.ones(2)  # some modules assign instead of writing
    binding.begin_turn()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_hyper_parameters_are_numbers() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25), betas=(0.5, 0.75))
    (hyper,) = Binding(model, optimizer, None).hyper()
    assert hyper["lr"] == 0.25
    assert hyper["betas"] == (0.5, 0.75)
    assert hyper["fused"] is None
