"""One plain PyTorch process that follows rule 11 of the design. It does not import Paceline.

The order of samples, the seeds and the digest are written here a second time, from docs/protocol.md.

    python -m tests.kit.reference_training sgd adamw …      prints {"sgd": {"digest": …, …}, …}
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from functools import cache
from typing import Any

import numpy as np
import torch
from tests.kit.training_cases import CASES, Case
from torch import nn
from torch.utils.data import default_collate

SEED = 7
_MASK = (1 << 64) - 1


# ------------------------------------------------------------------ order and seeds


def mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def sample_at(position: int, count: int, seed: int, epoch: int) -> int:
    """The sample at `position` of the shuffled epoch: six Feistel rounds, repeated until the result is a sample."""
    if count <= 1:
        return 0
    half = ((count - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    raw = hashlib.blake2b(f"paceline order {seed} {epoch}".encode(), digest_size=48).digest()
    keys = [int.from_bytes(raw[8 * r : 8 * r + 8], "little") for r in range(6)]
    x = position
    while True:
        left, right = x >> half, x & mask
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) & mask)
        x = (left << half) | right
        if x < count:
            return x


def seed_of(seed: int, step: int, slot: int, purpose: str) -> int:
    raw = hashlib.blake2b(f"paceline {purpose} {seed} {step} {slot}".encode(), digest_size=8).digest()
    return int.from_bytes(raw, "little") >> 1


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def batch_of(data: Any, samples: list[int], step: int, slot: int) -> Any:
    base = seed_of(SEED, step, slot, "data")
    fetched = []
    for place, sample in enumerate(samples):
        seed_everything((base + place) & 0x7FFFFFFFFFFFFFFF)
        fetched.append(data[sample])
    return default_collate(fetched)


def digest(model: nn.Module) -> str:
    out = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        shape = "x".join(map(str, tensor.shape))
        out.update(f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{shape}\0".encode())
        out.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return out.hexdigest()


# ------------------------------------------------------------------ one step


class WeightedMean:
    """(Σ wᵢ·xᵢ) / Σ wᵢ in slot order; slots without a value count only in the divisor."""

    def __init__(self) -> None:
        self.total: torch.Tensor | None = None

    def add(self, weight: float, value: torch.Tensor) -> None:
        term = value.detach().clone() * weight
        self.total = term if self.total is None else self.total + term

    def over(self, weight: float) -> torch.Tensor | None:
        return None if self.total is None else self.total / weight


def train_step(case: Case, model: nn.Module, data: Any, slots: list[list[int]], step: int) -> set[str]:
    """Compute the gradient and the buffers of one step in the model; return the names of absent gradients."""
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}
    changed: dict[str, torch.Tensor] = {}
    floats = {name: WeightedMean() for name, buffer in start.items() if buffer.is_floating_point()}
    grads = {name: WeightedMean() for name, _ in model.named_parameters()}
    weights = 0.0
    absent: set[str] = set()
    for slot, samples in enumerate(slots):
        weight = len(samples) / case.batch_size
        weights += weight
        for name, buffer in model.named_buffers():
            buffer.copy_(start[name])
        for parameter in model.parameters():
            parameter.grad = None
        batch = batch_of(data, samples, step, slot)
        seed_everything(seed_of(SEED, step, slot, "slot"))
        case.loss(model, batch).backward()
        case.after_backward(model)
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                absent.add(f"{name} slot {slot}")
            else:
                grads[name].add(weight, parameter.grad)
        for name, buffer in model.named_buffers():
            if not torch.equal(buffer, start[name]):
                changed[name] = buffer.clone()
            if name in floats:
                floats[name].add(weight, buffer)
    for name, parameter in model.named_parameters():
        parameter.grad = grads[name].over(weights)
        if parameter.grad is None:
            absent.add(f"{name} step")
    for name, buffer in model.named_buffers():
        buffer.copy_(start[name])
        if name in changed:
            mean = floats[name].over(weights) if name in floats else changed[name]
            assert mean is not None
            buffer.copy_(mean)
    return absent


def train(case: Case, slots: int) -> tuple[nn.Module, int, set[str]]:
    torch.set_num_threads(1)
    seed_everything(SEED)
    model = case.model()
    optimizer = case.optimizer(model)
    scheduler = case.scheduler(optimizer)
    data: Any = case.data()
    step = epoch = 0
    absent: set[str] = set()
    for phase, epochs in enumerate(case.epochs):
        case.before(model, phase)
        for _ in range(epochs):
            order = list(range(len(data)))
            if case.shuffle:
                order = [sample_at(k, len(data), SEED, epoch) for k in order]
            size = case.batch_size
            all_slots = [order[k : k + size] for k in range(0, len(order), size)]
            if case.drop_last:
                all_slots = [slot for slot in all_slots if len(slot) == size]
            for first in range(0, len(all_slots), slots):
                absent |= train_step(case, model, data, all_slots[first : first + slots], step)
                if case.clip_norm is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
                optimizer.step()
                if scheduler is not None and case.scheduler_every == "step":
                    scheduler.step()
                step += 1
            epoch += 1
            if scheduler is not None and case.scheduler_every == "epoch":
                scheduler.step()
    return model, step, absent


@cache
def expected(name: str) -> str:
    """Return the digest with which a case must end."""
    model, _, _ = train(CASES[name], CASES[name].slots)
    return digest(model)


def main() -> None:
    results = {}
    for name in sys.argv[1:]:
        model, steps, absent = train(CASES[name], CASES[name].slots)
        results[name] = {
            "digest": digest(model),
            "steps": steps,
            "absent": sorted(absent),
            "norm": float(sum(p.detach().double().pow(2).sum() for p in model.parameters())),
        }
    assert not any(name.split(".")[0] == "paceline" for name in sys.modules), "the reference is plain PyTorch"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
