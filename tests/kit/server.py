"""A small model with every kind of tensor, trained on stores that have some of its blocks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from paceline.blocks.block_state import BlockState, FrozenVersion
from paceline.blocks.tensors import bytes_of, piece_of
from paceline.blocks.torch_optimizers import optimizer_class
from paceline.checkpoint.manifest import FORMAT, Manifest, folder_name, write_manifest
from paceline.checkpoint.storage import LocalStorage, Storage
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.messages import JobArgs, Position
from paceline.server.checkpoint_writer import CheckpointWriter, Outcome
from paceline.server.dense_store import DenseStore
from paceline.types import (
    INIT_STEP,
    BlockSpec,
    Commit,
    Fence,
    Hyper,
    Kind,
    ModelSpec,
    OptimizerSpec,
    SavedFile,
    TensorSpec,
)

TENSORS = (
    TensorSpec("weight", (40, 30), "float32", Kind.PARAMETER, 0),
    TensorSpec("bias", (7,), "float32", Kind.PARAMETER, 0),
    TensorSpec("half", (100,), "bfloat16", Kind.PARAMETER, 0),
    TensorSpec("table", (50,), "float32", Kind.FROZEN),
    TensorSpec("mean", (9,), "float32", Kind.MEAN),
    TensorSpec("count", (), "int64", Kind.LAST),
    TensorSpec("seen", (3,), "bool", Kind.LAST),
)
BLOCKS = cut(TENSORS, 1024)
NUMBERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "maximize": True}),
    ("Adam", {"lr": 0.01, "fused": True}),
    ("AdamW", {"lr": 0.01, "betas": (0.8, 0.9)}),
    ("AdamW", {"lr": 0.01, "fused": True}),
    ("Adagrad", {"lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.5}),
    ("Adagrad", {"lr": 0.01, "fused": True}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
]
"""Hyper-parameters of every optimizer that servers run."""

# torch's fused SGD with momentum reads beyond a half-precision tensor: its own result depends on what lies there.
EXACT = [(name, numbers) for name, numbers in NUMBERS if not (name == "SGD" and "fused" in numbers)]

SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}


def model(name: str = "SGD", numbers: dict[str, Any] = SGD) -> ModelSpec:
    defaults = optimizer_class(name)([torch.nn.Parameter(torch.zeros(1))], **numbers).defaults
    hyper: Hyper = ({k: float(v) if isinstance(v, torch.Tensor) else v for k, v in defaults.items()},)
    return ModelSpec(TENSORS, OptimizerSpec(name, hyper))


def commit(spec: ModelSpec, version: int, step: int) -> Commit:
    return Commit(0, version, step, (Fence(1, version + 1),), spec.optimizer.hyper, 1.0, False, 0, 0)


def push(spec: ModelSpec, stores: Iterable[tuple[DenseStore, Sequence[int]]], version: int) -> None:
    """Make `version` from values that depend on nothing else. Frozen tensors are in version 0 only."""
    step = INIT_STEP if version == 0 else version - 1
    for store, blocks in stores:
        payloads: dict[int, object] = {}
        for index in blocks:
            block = BLOCKS[index]
            if block.kind == Kind.FROZEN and version:
                continue
            generator = torch.Generator().manual_seed(1000 * version + index)
            value = torch.randn(block.numel, generator=generator) * 3
            payloads[index] = bytes_of(value.to(getattr(torch, block.dtype)))
        key = SumKey(step, None)
        store.sums.add(key, SealedAttempt(1.0, frozenset(), payloads))
        store.apply(key, commit(spec, version, step))


def split(servers: int) -> list[list[int]]:
    """Blocks by server, interleaved."""
    return [list(range(n, len(BLOCKS), servers)) for n in range(servers)]


def opened(spec: ModelSpec, servers: int, storage: Storage | None = None) -> list[tuple[DenseStore, list[int]]]:
    stores = []
    for mine in split(servers):
        store = DenseStore(storage)
        store.open(spec, [BLOCKS[i] for i in mine])
        stores.append((store, mine))
    return stores


def contents(stores: Iterable[tuple[DenseStore, Sequence[int]]]) -> dict[str, bytes]:
    """Return all values and optimizer state by block, piece and name, without the padding."""
    return {name: bits for store, _ in stores for name, bits in bits_of(store.snapshot()).items()}


def bits_of(blocks: Mapping[int, BlockState]) -> dict[str, bytes]:
    found = {}
    for index, block in blocks.items():
        for number, piece in enumerate(BLOCKS[index].pieces):
            found[f"{index}/{number}"] = bytes(bytes_of(piece_of(block.value, piece)))
        for (number, name), tensor in block.state.items():
            found[f"{index}/{number}/{name}"] = bytes(bytes_of(tensor))
    return found


def written(writer: CheckpointWriter, timeout_s: float = 20.0) -> Outcome:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        outcome = writer.poll()
        if outcome is not None:
            return outcome
        time.sleep(0.005)
    raise AssertionError("nothing was written in time")


def save(spec: ModelSpec, stores: Iterable[tuple[DenseStore, Sequence[int]]], storage: Storage, version: int) -> str:
    """Write a complete checkpoint of the stores."""
    folder = folder_name(0, version)
    files: list[SavedFile] = []
    for number, (store, _) in enumerate(stores):
        store.checkpoints.save(version)
        assert store.checkpoints.frozen is not None
        writer = CheckpointWriter(storage, f"server-{number}/abc")
        writer.begin(folder, store.checkpoints.frozen)
        outcome = written(writer)
        assert not outcome.problem
        assert outcome.version == version
        files += outcome.files
        store.checkpoints.thaw()
    chains = tuple(f"{index:032x}" for index in range(len(BLOCKS)))
    write_manifest(storage, folder, Manifest(FORMAT, spec, position(version), tuple(files), chains))
    return folder


def position(version: int) -> Position:
    return Position(0, version, version, (), (), (), (), JobArgs(7, "bsp", None, 1), {"loss": float("nan")})


def bits(frozen: FrozenVersion) -> dict[str, bytes]:
    return bits_of(frozen.blocks)


def hyper_of(optimizer: torch.optim.Optimizer) -> Hyper:
    return tuple({k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups)


def frames(blocks: tuple[BlockSpec, ...], values: list[torch.Tensor | None]) -> dict[int, object]:
    """Frames of the blocks that have any of the values."""
    found: dict[int, object] = {}
    for block in blocks:
        if all(values[p.tensor] is None for p in block.pieces):
            continue
        whole = torch.zeros(block.numel, dtype=getattr(torch, block.dtype))
        for piece in block.pieces:
            value = values[piece.tensor]
            if value is not None:
                piece_of(whole, piece).copy_(value[piece.start : piece.start + piece.numel])
        found[block.index] = bytes_of(whole)
    return found


def content(dice: random.Random, index: int) -> memoryview:
    block = BLOCKS[index]
    values = torch.randn(block.numel, generator=torch.Generator().manual_seed(dice.randrange(1 << 30)))
    return bytes_of((values * 3).to(getattr(torch, block.dtype)))


class Slot:
    """The pushes of one worker for one slot: tensors may be absent, and the weight may be low or 0."""

    def __init__(self, dice: random.Random) -> None:
        self.weight = dice.choice([1.0, 1.0, 1.0, 0.25, 0.3])
        gone = {n for n, t in enumerate(TENSORS) if t.kind != Kind.FROZEN and dice.random() < 0.25}
        empty = dice.random() < 0.05
        self.weight = 0.0 if empty else self.weight
        self.absent = frozenset(gone)
        self.frames = {
            b.index: content(dice, b.index)
            for b in BLOCKS
            if b.kind != Kind.FROZEN and not empty and not all(p.tensor in gone for p in b.pieces)
        }


class HangingStorage(LocalStorage):
    """A storage that hangs until the test releases it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reached, self.let_go = threading.Event(), threading.Event()

    @contextmanager
    def create(self, name: str) -> Iterator[IO[bytes]]:
        with super().create(name) as file:
            self.reached.set()
            assert self.let_go.wait(20)
            yield file
