"""A checkpoint counts only after the log is synced; older checkpoints beyond those to keep are removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.checkpoint_files import complete, outcome, shard
from tests.kit.server import TENSORS

from paceline.checkpoint.manifest import folder_name, list_checkpoints, read_manifest
from paceline.checkpoint.storage import LocalStorage, open_storage
from paceline.coordinator.checkpoint_completion import CheckpointCompletion, complete_checkpoints
from paceline.coordinator.store import LogStore


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path / "log.sqlite")
    yield made
    made.close()


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_complete_checkpoint_replaces_older_ones(where: str, log: LogStore, tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "ckpt" if where == "local" else f"memory://{tmp_path.name}")
    keeper = CheckpointCompletion(storage, log.path, log.generation)
    for version in (1, 2):
        keeper.complete(complete(storage, version))
        assert outcome(keeper) == (folder_name(0, version), "")
    shard(storage, folder_name(0, 3))  # the remains of a server that was killed
    shard(storage, "indigo")  # a folder that is no checkpoint
    keeper.complete(complete(storage, 4, folder_name(0, 1)))
    assert outcome(keeper) == (folder_name(0, 4), "")
    assert storage.folders() == [folder_name(0, 2), folder_name(0, 4), "indigo"]
    manifest = read_manifest(storage, folder_name(0, 4))
    assert (manifest.model.tensors, manifest.position.version, manifest.chains) == (TENSORS, 4, ("00",))
    assert [c.folder for c in complete_checkpoints(storage)] == [folder_name(0, 2), folder_name(0, 4)]
    assert keeper.poll() is None


def test_a_coordinator_that_was_replaced_completes_and_removes_nothing(log: LogStore, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    keeper = CheckpointCompletion(storage, log.path, log.generation)
    keeper.complete(complete(storage, 1))
    outcome(keeper)
    LogStore(log.path).close()
    keeper.complete(complete(storage, 2, folder_name(0, 1)))
    assert "generation 2 has taken over" in outcome(keeper)[1]
    assert [c.folder for c in complete_checkpoints(storage)] == [folder_name(0, 1)]
    assert storage.files(folder_name(0, 2)) == ["server-0.safetensors"], (
        "the new coordinator may be about to complete the checkpoint"
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    keeper = CheckpointCompletion(storage, None, 1)
    wanted = complete(storage, 1)
    storage.delete(f"{folder_name(0, 1)}/server-0.safetensors")
    keeper.complete(wanted)
    assert "server-0.safetensors is missing" in outcome(keeper)[1]
    assert complete_checkpoints(storage) == []


def test_abandoned_checkpoints_are_removed_and_complete_ones_stay(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    keeper = CheckpointCompletion(storage, None, 1)
    keeper.complete(complete(storage, 1))
    for number in (2, 3, 4):
        shard(storage, folder_name(0, number))
    keeper.sweep(folder_name(0, 3))
    keeper.sweep(folder_name(0, 1))
    outcome(keeper)
    deadline = time.monotonic() + 20
    while len(storage.folders()) > 2:
        assert keeper.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert storage.folders() == [folder_name(0, 1), folder_name(0, 4)]
    keeper.close()


def test_without_storage_no_checkpoint_is_complete(tmp_path: Path) -> None:
    keeper = CheckpointCompletion(None, None, 1)
    keeper.complete(complete(LocalStorage(tmp_path), 1))
    assert "without a place" in outcome(keeper)[1]


def test_damaged_and_incomplete_checkpoints_are_logged_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = LocalStorage(tmp_path)
    keeper = CheckpointCompletion(storage, None, 1)
    for version in (1, 2, 3):
        keeper.complete(complete(storage, version))
        outcome(keeper)
    (tmp_path / folder_name(0, 2) / "manifest.json").write_text("{}")
    shard(storage, folder_name(0, 9))
    assert [c.position.version for c in complete_checkpoints(storage)] == [1, 3]
    assert folder_name(0, 2) in caplog.text
    assert folder_name(0, 9) in caplog.text
    assert complete_checkpoints(LocalStorage(tmp_path / "nowhere")) == []


def test_incomplete_checkpoints_after_the_resumed_one_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = LocalStorage(tmp_path)
    keeper = CheckpointCompletion(storage, None, 1)
    keeper.complete(complete(storage, 2))
    outcome(keeper)
    shard(storage, folder_name(0, 1))
    shard(storage, folder_name(0, 3))
    assert [c.position.version for c in complete_checkpoints(storage, folder_name(0, 2))] == [2]
    assert folder_name(0, 3) not in caplog.text
    assert folder_name(0, 1) in caplog.text, "an incomplete checkpoint before the chosen one is logged"
    caplog.clear()
    storage.remove(folder_name(0, 2))
    assert complete_checkpoints(storage, "") == []
    assert caplog.text == "", "no checkpoint is chosen, so none is logged"


def test_a_disk_that_is_full_when_the_marker_is_written_keeps_the_old_checkpoint(small_disk: Path) -> None:
    storage = LocalStorage(small_disk)
    keeper = CheckpointCompletion(storage, None, 1)
    keeper.complete(complete(storage, 1))
    assert outcome(keeper)[1] == ""
    wanted = complete(storage, 2, folder_name(0, 1))
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
    keeper.complete(wanted)
    folder, problem = outcome(keeper)
    assert problem == f"cannot complete {folder} in {small_disk}: No space left on device"
    assert [(c.folder, c.problem) for c in list_checkpoints(storage, verify=False)] == [(folder_name(0, 1), None)]
