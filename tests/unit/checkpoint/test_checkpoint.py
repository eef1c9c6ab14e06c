"""Checkpoints are complete or absent, and every damaged byte is noticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from paceline.checkpoint.manifest import (
    FORMAT,
    MARKER,
    Manifest,
    folder_name,
    list_checkpoints,
    newest,
    read_manifest,
    write_manifest,
)
from paceline.checkpoint.shards import BlockState, read_shards, write_shards
from paceline.checkpoint.storage import LocalStorage, Storage, open_storage
from paceline.core.layout import cut
from paceline.core.store import SumKey
from paceline.errors import CheckpointError
from paceline.messages import JobArgs, Position
from paceline.server.dense import DenseStore
from paceline.types import INIT_STEP, Commit, Fence, Hyper, Kind, ModelSpec, OptimizerSpec, TensorSpec

HYPER: Hyper = ({"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},)
MODEL = ModelSpec((TensorSpec("w", (300,), "float32", Kind.PARAMETER, 0),), OptimizerSpec("SGD", HYPER))
BLOCKS = cut(MODEL.tensors, 512)


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "ckpt" if request.param == "local" else f"memory://{tmp_path.name}/{id(request)}")


def _commit(version: int, step: int) -> Commit:
    return Commit(0, version, step, (Fence(1, version + 1),), HYPER, 1.0, False, 0, 0)


def _push(store: DenseStore, version: int, step: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = {b.index: torch.randn(b.numel, generator=generator) for b in BLOCKS}
    key = SumKey(step, None)
    store.add(key, 1.0, frozenset(), {i: v.view(torch.uint8).numpy().data for i, v in values.items()})
    store.apply(key, _commit(version, step))


def _trained(steps: int) -> DenseStore:
    store = DenseStore()
    store.open(MODEL, BLOCKS)
    _push(store, 0, INIT_STEP, 0)
    for step in range(steps):
        _push(store, step + 1, step, step + 1)
    return store


def _save(storage: Storage, version: int, store: DenseStore) -> str:
    folder = folder_name(0, version)
    blocks = store.snapshot()
    half = len(blocks) // 2
    files = []
    for name, part in (("server-0", list(blocks)[:half]), ("server-1", list(blocks)[half:])):
        files += write_shards(storage, folder, name, {i: blocks[i] for i in part})
    position = Position(0, version, version, (), (), (), (), JobArgs(7, "bsp", None, 1), {})
    chains = tuple("" for _ in BLOCKS)
    write_manifest(storage, folder, Manifest(FORMAT, MODEL, position, tuple(files), chains))
    return folder


def _values(store: DenseStore) -> list[torch.Tensor]:
    return [state.value for _, state in sorted(store.snapshot().items())]


def test_training_goes_on_with_the_same_bits_after_loading(storage: Storage) -> None:
    straight = _trained(5)
    folder = _save(storage, 3, _trained(3))
    resumed = DenseStore(storage)
    resumed.open(MODEL, BLOCKS)
    resumed.load(folder, 3)
    for step in (3, 4):
        _push(resumed, step + 1, step, step + 1)
    assert all(torch.equal(a, b) for a, b in zip(_values(straight), _values(resumed), strict=True))


def test_without_its_marker_a_checkpoint_does_not_count(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    old, new = _save(storage, 1, _trained(1)), _save(storage, 2, _trained(2))
    (tmp_path / new / MARKER).unlink()
    found, passed_over = newest(storage)
    assert found is not None
    assert found.folder == old
    assert [p.folder for p in passed_over] == [new]
    assert "incomplete" in str(passed_over[0].problem)


def test_every_truncation_and_bit_flip_is_noticed_by_name(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    folder = _save(storage, 2, _trained(2))
    files = [tmp_path / folder / name for name in storage.files(folder)]
    rng = random.Random(1)
    for _ in range(120):
        path = rng.choice(files)
        whole = path.read_bytes()
        at = rng.randrange(len(whole))
        damaged = whole[:at] if rng.random() < 0.5 else whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        path.write_bytes(damaged)
        (listed,) = list_checkpoints(storage, verify=True)
        assert listed.problem is not None, f"{path.name} damaged at {at}"
        path.write_bytes(whole)
    assert list_checkpoints(storage, verify=True)[0].problem is None


def _fail_half_way(storage: Storage) -> None:
    with storage.create("i0/part") as file:
        file.write(b"half")
        raise OSError("disk full")


def test_a_write_that_fails_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(OSError, match="full"):
        _fail_half_way(storage)
    assert storage.files("i0") == []
    storage.remove("i0")
    assert storage.folders() == []


def test_a_block_that_no_file_holds_is_named(storage: Storage) -> None:
    folder = folder_name(0, 1)
    files = write_shards(storage, folder, "s", {0: BlockState(torch.zeros(4))})
    position = Position(0, 1, 1, (), (), (), (), JobArgs(7, "bsp", None, 1), {})
    write_manifest(storage, folder, Manifest(FORMAT, MODEL, position, tuple(files), ()))
    with pytest.raises(CheckpointError, match="no file holds block 5"):
        list(read_shards(storage, folder, read_manifest(storage, folder), [0, 5]))
