"""A checkpoint is complete or absent, and every damaged byte is detected."""

from __future__ import annotations

import hashlib
import random
import time
from math import inf, nan
from pathlib import Path

import pytest
import torch

from paceline.blocks.block_state import BlockState
from paceline.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    MARKER,
    Manifest,
    folder_name,
    list_checkpoints,
    newest,
    read_manifest,
    write_manifest,
)
from paceline.checkpoint.shards import read_shards, write_shards
from paceline.checkpoint.storage import LocalStorage, Storage, open_storage
from paceline.core.layout import cut
from paceline.core.server.block_store import SealedAttempt, SumKey
from paceline.errors import CheckpointError
from paceline.messages import JobArgs, Position
from paceline.server.dense_store import DenseStore
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
    store.sums.add(
        key, SealedAttempt(1.0, frozenset(), {i: v.view(torch.uint8).numpy().data for i, v in values.items()})
    )
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


def test_training_resumes_with_the_same_bits(storage: Storage) -> None:
    straight = _trained(5)
    folder = _save(storage, 3, _trained(3))
    resumed = DenseStore(storage)
    resumed.open(MODEL, BLOCKS)
    resumed.checkpoints.load(folder, 3)
    for step in (3, 4):
        _push(resumed, step + 1, step, step + 1)
    assert all(torch.equal(a, b) for a, b in zip(_values(straight), _values(resumed), strict=True))


def test_a_checkpoint_without_its_marker_is_incomplete(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    old, new = _save(storage, 1, _trained(1)), _save(storage, 2, _trained(2))
    (tmp_path / new / MARKER).unlink()
    found, passed_over = newest(storage)
    assert found is not None
    assert found.folder == old
    assert [p.folder for p in passed_over] == [new]
    assert "incomplete" in str(passed_over[0].problem)


@pytest.mark.parametrize("seed", range(5))
def test_every_truncation_and_bit_flip_is_detected_by_name(seed: int, tmp_path: Path) -> None:
    """100 damages for each seed, over all files; each time the next older checkpoint is found."""
    storage = LocalStorage(tmp_path)
    old, new = _save(storage, 1, _trained(1)), _save(storage, 2, _trained(2))
    files = [tmp_path / new / name for name in storage.files(new)]
    assert {MARKER, MANIFEST, "server-0-0000.safetensors", "server-1-0000.safetensors"} == {f.name for f in files}
    rng = random.Random(seed)
    for _ in range(100):
        path = rng.choice(files)
        whole = path.read_bytes()
        at = rng.randrange(len(whole))
        flipped = bytes([whole[at] ^ (1 << rng.randrange(8))])
        path.write_bytes(whole[:at] if rng.random() < 0.5 else whole[:at] + flipped + whole[at + 1 :])
        found, passed_over = newest(storage)
        assert [p.folder for p in passed_over] == [new], f"{path.name} damaged at {at}"
        assert path.name in str(passed_over[0].problem)
        assert found is not None
        assert found.folder == old
        path.write_bytes(whole)
    assert [c.problem for c in list_checkpoints(storage, verify=True)] == [None, None]


def _rewrite(storage: Storage, folder: str, content: bytes) -> None:
    """Write a manifest and its marker."""
    for name, data in ((MANIFEST, content), (MARKER, hashlib.sha256(content).hexdigest().encode())):
        with storage.create(f"{folder}/{name}") as file:
            file.write(data)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"{", "manifest.json is not a valid manifest: "),
        (b"\xff\xfe\x00", "manifest.json is not a valid manifest: "),
        (b"[]", "manifest.json is not a valid manifest: Expected `object`, got `array`"),
        (b'{"format": "one"}', r"manifest.json is not a valid manifest: Expected `int`, got `str` - at `\$.format`"),
        (b'{"format": 1}', "manifest.json is not a valid manifest: Object missing required field"),
    ],
)
def test_a_malformed_manifest_is_named(content: bytes, named: str, storage: Storage) -> None:
    folder = _save(storage, 1, _trained(1))
    _rewrite(storage, folder, content)
    with pytest.raises(CheckpointError, match=named):
        read_manifest(storage, folder)


def test_a_manifest_of_another_format_or_checkpoint_is_named(storage: Storage) -> None:
    folder = _save(storage, 1, _trained(1))
    content = storage.read(f"{folder}/{MANIFEST}")
    _rewrite(storage, folder, content.replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(CheckpointError, match=r"manifest.json has format 9"):
        read_manifest(storage, folder)
    _rewrite(storage, "i0000-v0000000007", content)
    with pytest.raises(CheckpointError, match=r"manifest.json belongs to checkpoint i0000-v0000000001"):
        read_manifest(storage, "i0000-v0000000007")


def test_nan_and_infinity_survive_the_manifest(storage: Storage) -> None:
    folder = folder_name(0, 1)
    metrics = {"loss": nan, "best": inf}
    position = Position(0, 1, 1, (), (), (), (), JobArgs(7, "bsp", None, 1), metrics)
    write_manifest(storage, folder, Manifest(FORMAT, MODEL, position, (), ()))
    found = read_manifest(storage, folder)
    assert repr(found.position) == repr(position)
    assert 0 <= time.time() - found.made_at < 60


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    folder = _save(storage, 1, _trained(1))
    for name, problem in (
        ("server-0-0000.safetensors", "server-0-0000.safetensors is missing"),
        (MANIFEST, "manifest.json is missing"),
        (MARKER, "incomplete: COMPLETE is missing"),
    ):
        (tmp_path / folder / name).unlink()
        (listed,) = list_checkpoints(storage, verify=True)
        assert (listed.problem, listed.damaged) == (problem, name != MARKER), "without a marker it was never complete"
        (tmp_path / folder / name).mkdir()
        assert list_checkpoints(storage, verify=True)[0].problem == f"{name} cannot be read: Is a directory"


def test_checkpoints_are_in_the_order_of_their_numbers(storage: Storage) -> None:
    names = [folder_name(*at) for at in ((0, 9), (0, 10), (2, 3), (10_000, 1), (10_000, 2), (100_000, 1))]
    for name in (*reversed(names), "i-am-something-else", "other"):
        _rewrite(storage, name, b"{}")
    assert [c.folder for c in list_checkpoints(storage, verify=True)] == names
    found, passed_over = newest(storage)
    assert found is None
    assert [c.folder for c in passed_over] == names[::-1]


def _fail_half_way(storage: Storage) -> None:
    with storage.create("i0/part") as file:
        file.write(b"half")
        raise OSError("disk full")


def test_a_failed_write_leaves_no_file(storage: Storage) -> None:
    with pytest.raises(OSError, match="full"):
        _fail_half_way(storage)
    assert storage.files("i0") == []
    storage.remove("i0")
    assert storage.folders() == []


def test_a_block_in_no_file_is_named(storage: Storage) -> None:
    folder = folder_name(0, 1)
    files = write_shards(storage, folder, "s", {0: BlockState(torch.zeros(4))})
    position = Position(0, 1, 1, (), (), (), (), JobArgs(7, "bsp", None, 1), {})
    write_manifest(storage, folder, Manifest(FORMAT, MODEL, position, tuple(files), ()))
    with pytest.raises(CheckpointError, match="no file holds block 5"):
        list(read_shards(storage, folder, read_manifest(storage, folder), [0, 5]))
