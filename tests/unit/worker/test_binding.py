"""The binding of a model to its blocks: blocks get the computed values, and the model gets the received ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from paceline.blocks.tensors import piece_of, tensor_of
from paceline.messages import BlockFrame
from paceline.reducers.base import Made
from paceline.reducers.push_buffers import BufferLayout, PushBuffer
from paceline.types import Kind
from paceline.worker.binding import Binding


def buffer_for(binding: Binding) -> PushBuffer:
    layout = BufferLayout(binding.spec.tensors, binding.blocks)
    return PushBuffer(layout, lambda nbytes: memoryview(bytearray(nbytes)))


def _bound(model: nn.Module) -> Binding:
    trained = [p for p in model.parameters() if p.requires_grad]
    return Binding(model, torch.optim.SGD(trained, lr=0.1), None)


def test_a_model_that_is_filled_from_written_blocks_equals_their_source() -> None:
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
    buffer = buffer_for(out)
    out.write_all(out.initial(), buffer)
    assert {b.kind for b in out.blocks} == set(Kind)
    frames = [BlockFrame(b.index, b.dtype, b.numel) for b in out.blocks]
    into.fill(frames, [buffer.frames[b.index] for b in out.blocks])
    for (name, a), b in zip(source.state_dict().items(), target.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "write",
    [
        lambda binding, made, buffer: binding.write_all(made, buffer),
        lambda binding, made, buffer: binding.write(made.values, buffer, made.carried.blocks),
    ],
    ids=["all", "blocks"],
)
def test_a_tensor_without_gradient_is_absent(write: Callable[[Binding, Made, PushBuffer], None]) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1), nn.BatchNorm1d(1))
    binding = _bound(model)
    binding.begin_turn()
    model[1](model[0](torch.randn(4, 3))).sum().backward()
    made = binding.made()
    assert made is not None
    absent, carrying = made.carried.absent, made.carried.blocks
    buffer = buffer_for(binding)
    write(binding, made, buffer)
    names = [t.name for t in binding.spec.tensors]
    assert {names[n] for n in absent} == {
        "2.weight", "2.bias", "3.weight", "3.bias", "3.running_mean", "3.running_var", "3.num_batches_tracked",
    }  # fmt: skip
    for block in carrying:
        for piece in block.pieces:
            content = piece_of(tensor_of(buffer.frames[block.index], block.dtype), piece)
            if piece.tensor not in absent:
                assert torch.equal(content, made.values[piece.tensor].reshape(-1)[piece.start :][: piece.numel])
            if piece.tensor in absent and block.kind == Kind.PARAMETER:
                assert torch.equal(content, torch.zeros_like(content))
                assert torch.signbit(content).all(), "-0.0 changes no sum, so it stands for an absent gradient"


def test_every_turn_starts_from_the_buffers_of_the_version() -> None:
    model = nn.BatchNorm1d(2)
    binding = _bound(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(8, 2))
    model.running_mean = torch.ones(2)  # some modules assign a new tensor instead of writing in place
    binding.begin_turn()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_gradient_of_any_layout_is_written_like_its_blocks_one_by_one() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Parameter(torch.randn(700, 900))
            self.empty = nn.Parameter(torch.zeros(0, 3))
            self.odd = nn.Parameter(torch.randn(5, 7, 3, 3))

    torch.manual_seed(0)
    model = Model()
    binding = _bound(model)
    binding.begin_turn()
    model.large.grad = torch.randn(900, 700).t()
    model.empty.grad = torch.zeros(0, 3)
    model.odd.grad = torch.randn(5, 7, 3, 3).to(memory_format=torch.channels_last)
    made = binding.made()
    assert made is not None
    by_tensor, by_block = buffer_for(binding), buffer_for(binding)
    binding.write_all(made, by_tensor)
    binding.write(made.values, by_block, made.carried.blocks)
    assert sum(any(p.tensor == 0 for p in b.pieces) for b in binding.blocks) > 2
    for block in binding.blocks:
        assert bytes(by_tensor.frames[block.index]) == bytes(by_block.frames[block.index])
        for piece in block.pieces:
            expected = model.large.grad if piece.tensor == 0 else model.odd.grad
            content = piece_of(tensor_of(by_tensor.frames[block.index], block.dtype), piece)
            assert torch.equal(content, expected.reshape(-1)[piece.start :][: piece.numel])


def test_a_change_of_hyper_parameters_is_detected() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    binding = Binding(model, optimizer, None)
    before = binding.hyper()
    assert binding.hyper() is before
    changes: list[tuple[str, Any]] = [("lr", 0.25), ("betas", (0.5, 0.75)), ("weight_decay", 1), ("amsgrad", True)]
    for key, value in changes:
        optimizer.param_groups[0][key] = value
        assert binding.hyper()[0][key] == value
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    for value in (0.25, 0.125):
        rate.fill_(value)
        assert binding.hyper()[0]["lr"] == value, "a tensor can change in place, so its identity does not show it"


def test_hyper_parameters_are_read_as_plain_numbers() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25), betas=(0.5, 0.75))
    (hyper,) = Binding(model, optimizer, None).hyper()
    assert hyper["lr"] == 0.25
    assert hyper["betas"] == (0.5, 0.75)
    assert hyper["fused"] is None
