"""Flat optimizers give the bits of `torch.optim`, for any hyper-parameters, sizes and missing gradients."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.kit.server import frames, hyper_of

from paceline.blocks import flat_optimizers
from paceline.blocks.block_state import BlockState
from paceline.blocks.flat_optimizers import fits
from paceline.blocks.tensors import piece_of
from paceline.blocks.threads import Threads
from paceline.blocks.torch_optimizers import optimizer_class
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.server.dense_store import DenseStore
from paceline.types import INIT_STEP, BlockSpec, Commit, Kind, ModelSpec, OptimizerSpec, TensorSpec

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = ("float32", "float32", "float64", "bfloat16")


def numbers_of(name: str, dice: random.Random) -> dict[str, Any]:
    """Hyper-parameters as a user may choose them."""
    some: dict[str, Any] = {"lr": dice.choice([0.1, 0.05, 1e-3, 1.0, 0.0]), "maximize": dice.random() < 0.3}
    some["weight_decay"] = dice.choice([0.0, 0.0, 0.01, 5e-4])
    if name != "SGD":
        some["betas"] = dice.choice([(0.9, 0.999), (0.8, 0.95), (0.0, 0.5)])
        some["eps"] = dice.choice([1e-8, 1e-3])
        return some
    some["momentum"] = dice.choice([0.0, 0.9, 0.5])
    some["nesterov"] = bool(some["momentum"]) and dice.random() < 0.3
    some["dampening"] = 0.0 if some["nesterov"] else dice.choice([0.0, 0.0, 0.1, 1.0])
    return some


class Plain:
    """The same model trained by plain torch."""

    def __init__(self, name: str, shapes: list[int], dtype: torch.dtype, dice: random.Random) -> None:
        self.params = [torch.nn.Parameter(torch.randn(n).to(dtype)) for n in shapes]
        self.groups = [dice.randrange(2) for _ in shapes]
        made = []
        for number in sorted(set(self.groups)):
            mine = [p for p, g in zip(self.params, self.groups, strict=True) if g == number]
            made.append({"params": mine, **numbers_of(name, dice)})
        order = sorted(set(self.groups))
        self.groups = [order.index(g) for g in self.groups]
        self.optimizer = optimizer_class(name)(made)  # type: ignore[call-arg]


def tensors(blocks: tuple[BlockSpec, ...], taken: dict[int, BlockState], shapes: list[int]) -> list[torch.Tensor]:
    out = [torch.empty(n, dtype=getattr(torch, blocks[0].dtype)) for n in shapes]
    for block in blocks:
        for piece in block.pieces:
            into = out[piece.tensor][piece.start : piece.start + piece.numel]
            into.copy_(piece_of(taken[block.index].value, piece))
    return out


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("seed", range(40))
def test_flat_updates_have_the_bits_of_torch(name: str, seed: int) -> None:
    dice = random.Random(f"{name} {seed}")
    torch.manual_seed(seed)
    dtype = DTYPES[seed % len(DTYPES)]
    shapes = [dice.choice([1, 3, 7, 64, 65, 100, 500, 1000, dice.randrange(1, 3000)]) for _ in range(6)]
    plain = Plain(name, shapes, getattr(torch, dtype), dice)
    specs = tuple(
        TensorSpec(f"p{i}", (n,), dtype, Kind.PARAMETER, g)
        for i, (n, g) in enumerate(zip(shapes, plain.groups, strict=True))
    )
    blocks = cut(specs, dice.choice([256, 1024, 1 << 20]))
    store = DenseStore(threads=Threads(dice.choice([1, 3])))
    store.open(ModelSpec(specs, OptimizerSpec(name, hyper_of(plain.optimizer))), blocks)
    assert fits(name, hyper_of(plain.optimizer))
    key = SumKey(INIT_STEP, None)
    store.sums.add(key, SealedAttempt(1.0, frozenset(), frames(blocks, [p.detach() for p in plain.params])))
    store.apply(key, Commit(0, 0, INIT_STEP, (), hyper_of(plain.optimizer), 1.0, False, 0, 0))
    for step in range(8):
        if dice.random() < 0.3:
            for group in plain.optimizer.param_groups:
                group["lr"] *= 0.7
        slots = dice.randrange(1, 4)
        key, total = SumKey(step, None), 0.0
        sums: list[torch.Tensor | None] = [None] * len(shapes)
        for slot in range(slots):
            gone = {i for i in range(len(shapes)) if step > 1 and dice.random() < 0.2}
            grads = [None if i in gone else torch.randn(n).to(getattr(torch, dtype)) for i, n in enumerate(shapes)]
            weight = dice.choice([1.0, 1.0, 1.0, 0.375])
            store.sums.add(key, SealedAttempt(weight, frozenset(gone), frames(blocks, grads), slot=slot))
            total += weight
            terms = [None if g is None else g if weight == 1.0 else g * weight for g in grads]
            sums = [t if s is None else s if t is None else s + t for s, t in zip(sums, terms, strict=True)]
        for param, gradient in zip(plain.params, sums, strict=True):
            param.grad = None if gradient is None else gradient / total
        plain.optimizer.step()
        if dice.random() < 0.7:  # an early update, before the commit is known
            store.update_early(key, hyper_of(plain.optimizer) if dice.random() < 0.5 else ())
        store.apply(key, Commit(0, step + 1, step, (), hyper_of(plain.optimizer), 1.0, False, 0, 0))
        for number, found in enumerate(tensors(blocks, store.snapshot(), shapes)):
            expected = plain.params[number].detach()
            assert torch.equal(found, expected), f"step {step}, tensor {number} of {shapes[number]}"
    store.close()


def test_torch_computes_updates_with_hyper_parameters_that_flat_optimizers_lack() -> None:
    for name, numbers in (
        ("SGD", {"fused": True}),
        ("SGD", {"foreach": True}),
        ("Adam", {"amsgrad": True}),
        ("Adam", {"eps": 0.0}),
        ("AdamW", {"fused": True}),
        ("RMSprop", {}),
        ("Adagrad", {}),
    ):
        made = optimizer_class(name)([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **numbers)  # type: ignore[call-arg]
        assert not fits(name, hyper_of(made)), (name, numbers)
    assert not fits("SGD", ({"lr": 0.1},)), "torch would add defaults"


def test_the_optimizer_state_moves_to_torch_when_new_hyper_parameters_need_torch() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Parameter(torch.randn(128))
    optimizer = torch.optim.Adam([plain], lr=0.1)
    specs = (TensorSpec("p", (128,), "float32", Kind.PARAMETER, 0),)
    blocks = cut(specs)
    store = DenseStore()
    store.open(ModelSpec(specs, OptimizerSpec("Adam", hyper_of(optimizer))), blocks)
    for step in range(-1, 6):
        if step == 3:
            optimizer.param_groups[0]["foreach"] = True
        value = torch.randn(128) if step >= 0 else plain.detach().clone()
        store.sums.add(SumKey(step, None), SealedAttempt(1.0, frozenset(), frames(blocks, [value])))
        store.apply(SumKey(step, None), Commit(0, step + 1, step, (), hyper_of(optimizer), 1.0, False, 0, 0))
        if step >= 0:
            plain.grad = value
            optimizer.step()
        assert torch.equal(store.snapshot()[0].value, plain.detach()), step


def test_pieces_are_joined_only_if_torch_rounds_all_elements_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_optimizers, "_trial", lambda a, b, c: [a if len(a) == 256 else a + 1])
    flat_optimizers.elements_agree.cache_clear()
    assert not flat_optimizers.elements_agree(torch.float32)
    test_flat_updates_have_the_bits_of_torch("SGD", 0)
    flat_optimizers.elements_agree.cache_clear()
