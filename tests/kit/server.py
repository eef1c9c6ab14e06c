"""A small model with every kind of tensor, trained on stores that have some of its blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.tensors import bytes_of, piece_of
from paceline.blocks.torch_optimizers import optimizer_class
from paceline.checkpoint.manifest import FORMAT, Manifest, folder_name, write_manifest
from paceline.checkpoint.storage import Storage
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.messages import JobArgs, Position
from paceline.server.checkpoint_writer import CheckpointWriter, Outcome
from paceline.server.dense_store import DenseStore
from paceline.types import INIT_STEP, Commit, Fence, Hyper, Kind, ModelSpec, OptimizerSpec, SavedFile, TensorSpec

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
    """All values and optimizer state, by block, piece and name, without the padding."""
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
