"""A saved version has the bits of the frozen one, and loads on any number of servers."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from safetensors.torch import load_file
from tests.kit.server import (
    BLOCKS,
    EXACT,
    TENSORS,
    HangingStorage,
    bits,
    contents,
    model,
    opened,
    push,
    save,
    split,
    written,
)

from paceline.blocks.block_state import BlockState, FrozenVersion
from paceline.checkpoint.manifest import folder_name, newest
from paceline.checkpoint.shards import write_shards
from paceline.checkpoint.storage import LocalStorage, Storage, open_storage
from paceline.errors import CheckpointError
from paceline.server.checkpoint_writer import CheckpointWriter
from paceline.server.dense_store import DenseStore
from paceline.types import ModelSpec

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(tmp_path / "ckpt" if request.param == "local" else f"memory://{tmp_path.name}/{id(request)}")


@pytest.mark.parametrize(("name", "numbers"), EXACT, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_training_resumes_with_the_same_bits_on_other_servers(
    name: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    storage = LocalStorage(tmp_path)
    spec = model(name, numbers)
    straight = opened(spec, 2)
    for version in range(4):
        push(spec, straight, version)
    folder = save(spec, straight, storage, 3)
    for version in (4, 5, 6):
        push(spec, straight, version)
    for servers in (1, 3):
        resumed = opened(spec, servers, storage)
        for store, mine in resumed:
            chains = store.checkpoints.load(folder, 3)
            assert chains == {index: bytes.fromhex(f"{index:032x}") for index in mine}
            assert [f.block for f in store.versions.read(3, 2, None)[0]] == mine, (
                "every block is new to a reader that has version 2"
            )
            assert store.versions.read(3, 3, None)[0] == ()
        for version in (4, 5, 6):
            push(spec, resumed, version)
        assert contents(resumed) == contents(straight), f"{servers} servers"


def test_a_checkpoint_of_version_0_has_no_optimizer_state(storage: Storage) -> None:
    spec = model("Adam", {"lr": 0.1})
    one = opened(spec, 1)
    push(spec, one, 0)
    folder = save(spec, one, storage, 0)
    other = opened(spec, 2, storage)
    for store, _ in other:
        store.checkpoints.load(folder, 0)
    assert contents(other) == contents(one)
    push(spec, other, 1)
    push(spec, one, 1)
    assert contents(other) == contents(one)


def test_a_frozen_version_does_not_change_and_its_memory_is_reused() -> None:
    spec = model("Adam", {"lr": 0.1})
    ((store, mine),) = opened(spec, 1)
    for version in range(3):
        push(spec, [(store, mine)], version)
    addresses: list[set[int]] = []
    for start in (2, 7, 12, 17):
        store.checkpoints.save(start)
        frozen = store.checkpoints.frozen
        assert frozen is not None
        before = bits(frozen)
        assert before == contents([(store, mine)])
        for version in range(start + 1, start + 4):
            push(spec, [(store, mine)], version)
            assert bits(frozen) == before, f"version {version} wrote into version {start}"
        assert contents([(store, mine)]) != before
        store.checkpoints.thaw()
        assert bits(frozen) == before, "a frozen version does not change until its reader is done"
        frozen.release()
        for version in range(start + 4, start + 6):
            push(spec, [(store, mine)], version)
        states = [t for block in store.snapshot().values() for (_, name), t in block.state.items() if name != "step"]
        addresses.append({t.data_ptr() for t in states})
    assert addresses[0] == addresses[2], "two sets of optimizer state take turns"
    assert addresses[1] == addresses[3]


def test_a_newer_frozen_version_replaces_an_unwritten_one() -> None:
    spec = model()
    ((store, mine),) = opened(spec, 1)
    push(spec, [(store, mine)], 0)
    push(spec, [(store, mine)], 1)
    store.checkpoints.save(1)
    old = store.checkpoints.frozen
    assert old is not None
    first = bits(old)
    store.checkpoints.save(1)  # freezes version 1 a second time, in the same memory as `old`
    push(spec, [(store, mine)], 2)
    store.checkpoints.save(2)
    new = store.checkpoints.frozen
    assert new is not None
    second = bits(new)
    push(spec, [(store, mine)], 3)
    assert (bits(old), bits(new)) == (first, second)


def test_open_forgets_the_blocks_and_the_frozen_version(tmp_path: Path) -> None:
    spec = model()
    ((store, mine),) = opened(spec, 1)
    for version in range(3):
        push(spec, [(store, mine)], version)
    store.versions.keep(2)
    store.checkpoints.save(2)
    few = split(3)[0]
    store.open(spec, [BLOCKS[i] for i in few])
    assert store.versions.number == -1
    assert store.checkpoints.frozen is None
    fresh = DenseStore()
    fresh.open(spec, [BLOCKS[i] for i in few])
    for version in range(3):
        push(spec, [(store, few), (fresh, few)], version)
    assert contents([(store, few)]) == contents([(fresh, few)])


@pytest.mark.parametrize("what", ["version", "model", "optimizer", "place", "missing", "unreadable"])
def test_a_checkpoint_that_cannot_be_loaded_is_named_with_the_reason(what: str, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    spec = model()
    one = opened(spec, 1)
    push(spec, one, 0)
    folder = save(spec, one, storage, 0)
    store = DenseStore(None if what == "place" else storage)
    other = model("Adam", {"lr": 0.1}) if what == "optimizer" else spec
    store.open(other, BLOCKS)
    expected = {
        "version": "holds version 0, not 5",
        "model": "another model",
        "optimizer": "another optimizer",
        "place": "without a place for checkpoints",
        "missing": "incomplete",
        "unreadable": "safetensors cannot be read: Is a directory",
    }
    if what == "model":
        store.open(ModelSpec(TENSORS[:3], spec.optimizer), BLOCKS[:1])
    if what == "unreadable":
        (path,) = tmp_path.glob(f"{folder}/*.safetensors")
        path.unlink()
        path.mkdir()
    with pytest.raises(CheckpointError, match=expected[what]) as caught:
        store.checkpoints.load("i0009-v0000000009" if what == "missing" else folder, 5 if what == "version" else 0)
    assert caught.value.folder in ("i0009-v0000000009", folder)


def test_any_reader_of_safetensors_opens_the_files(tmp_path: Path) -> None:
    spec = model("Adam", {"lr": 0.1})
    one = opened(spec, 1)
    for version in range(2):
        push(spec, one, version)
    folder = save(spec, one, LocalStorage(tmp_path), 1)
    (path,) = tmp_path.glob(f"{folder}/*.safetensors")
    snapshot = one[0][0].snapshot()
    read = load_file(path)
    assert len(read) == sum(1 + len(block.state) for block in snapshot.values())
    for index, block in snapshot.items():
        assert torch.equal(read[f"{index}/value"], block.value)
        for (piece, name), tensor in block.state.items():
            assert torch.equal(read[f"{index}/{piece}/{name}"], tensor)


def test_blocks_may_be_larger_than_a_write_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.checkpoint.shards._RUN_NBYTES", 1000)
    monkeypatch.setattr("paceline.checkpoint.shards._FILE_NBYTES", 3000)
    spec = model()
    one = opened(spec, 1)
    for version in range(3):
        push(spec, one, version)
    storage = LocalStorage(tmp_path)
    folder = save(spec, one, storage, 2)
    assert len(storage.files(folder)) > 3
    other = opened(spec, 1, storage)
    other[0][0].checkpoints.load(folder, 2)
    assert contents(other) == contents(one)


# ---------------------------------------------------------------- failures


def _frozen(nbytes: int) -> FrozenVersion:
    blocks = 4
    values = torch.arange(nbytes // blocks, dtype=torch.uint8)
    return FrozenVersion(2, {n: BlockState(values + n) for n in range(blocks)})


def _old_checkpoint(storage: Storage) -> str:
    spec = model()
    one = opened(spec, 1)
    push(spec, one, 0)
    return save(spec, one, storage, 0)


@contextmanager
def _file_size_limit(nbytes: int) -> Iterator[None]:
    """Let the system refuse files larger than `nbytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_failed_write_is_reported_and_the_old_checkpoint_stays_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.checkpoint.shards._FILE_NBYTES", 1 << 20)
    storage = LocalStorage(tmp_path)
    old = _old_checkpoint(storage)
    frozen = _frozen(4 << 20)
    frozen.blocks[3] = BlockState(torch.zeros(3 << 20, dtype=torch.uint8))  # the last of four files exceeds the limit
    writer = CheckpointWriter(storage, "server-0/1")
    with _file_size_limit(2 << 20):
        writer.begin(folder_name(0, 2), frozen)
        outcome = written(writer)
    assert "File too large" in outcome.problem
    assert folder_name(0, 2) in outcome.problem
    assert str(tmp_path) in outcome.problem
    assert outcome.files == ()
    assert storage.files(folder_name(0, 2)) == [], "the files that could be written are removed"
    assert frozen.done
    found, _ = newest(storage)
    assert found is not None
    assert found.folder == old
    writer.begin(folder_name(0, 3), _frozen(1000))
    assert written(writer).problem == "", "the next checkpoint is written"


def test_a_full_disk_is_reported_and_the_old_checkpoint_stays_complete(small_disk: Path) -> None:
    storage = LocalStorage(small_disk)
    old = _old_checkpoint(storage)
    writer = CheckpointWriter(storage, "server-0/1")
    for version in (2, 3):
        writer.begin(folder_name(0, version), _frozen(2 << 20))
        outcome = written(writer)
        assert "No space left on device" in outcome.problem
        assert storage.files(folder_name(0, version)) == []
    found, passed_over = newest(storage)
    assert found is not None
    assert found.folder == old
    assert passed_over == []


def test_the_save_of_a_version_that_was_given_up_is_not_reported(tmp_path: Path) -> None:
    storage = HangingStorage(tmp_path)
    writer = CheckpointWriter(storage, "server-0/1")
    first, second, third = _frozen(1000), _frozen(1000), _frozen(1000)
    writer.begin(folder_name(0, 1), first)
    assert storage.reached.wait(20)
    writer.begin(folder_name(0, 2), second)
    writer.begin(folder_name(0, 3), third)
    assert writer.poll() is None
    assert second.done, "the writer never began to write it"
    assert not first.done, "the writer's thread may still read the version"
    storage.let_go.set()
    outcome = written(writer)
    assert outcome.problem == ""
    assert first.done
    assert third.done
    assert [f for f in storage.folders() if storage.files(f)] == [folder_name(0, 3)]
    writer.close()


def test_close_does_not_wait_for_a_storage_that_hangs(tmp_path: Path) -> None:
    storage = HangingStorage(tmp_path)
    writer = CheckpointWriter(storage, "server-0/1")
    writer.begin(folder_name(0, 1), _frozen(1000))
    assert storage.reached.wait(20)
    writer.close(timeout_s=0.05)
    storage.let_go.set()
    writer.close()
    assert writer.poll() is None


def test_a_save_without_a_storage_is_reported_as_failed() -> None:
    writer = CheckpointWriter(None, "server-0/1")
    frozen = _frozen(1000)
    writer.begin(folder_name(0, 1), frozen)
    assert "without a place" in written(writer).problem
    assert frozen.done


def test_two_starts_of_a_server_never_write_the_same_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for node in ("server-0/1", "server-0/2"):
        writer = CheckpointWriter(storage, node)
        writer.begin(folder_name(0, 1), _frozen(1000))
        written(writer)
    assert len(storage.files(folder_name(0, 1))) == 2


def test_any_exception_of_a_storage_is_reported(tmp_path: Path) -> None:
    class Store(LocalStorage):
        @contextmanager
        def create(self, name: str) -> Iterator[IO[bytes]]:
            raise RuntimeError("SlowDown")
            yield

    writer = CheckpointWriter(Store(tmp_path), "server-0/1")
    writer.begin(folder_name(0, 1), _frozen(1000))
    assert "RuntimeError: SlowDown" in written(writer).problem


def test_an_abandoned_write_leaves_no_file(storage: Storage) -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("enough")

    blocks = {n: BlockState(torch.zeros(40 << 20, dtype=torch.uint8)) for n in range(2)}
    with pytest.raises(KeyError, match="enough"):
        write_shards(storage, "i0000-v0000000001", "server-0", blocks, check)
    assert storage.files("i0000-v0000000001") == []
