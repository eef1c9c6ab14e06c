"""Files of a checkpoint, and the coordinator that completes it."""

from __future__ import annotations

import time

from tests.kit.server import model, position

from paceline.checkpoint.manifest import folder_name
from paceline.checkpoint.storage import Storage
from paceline.checkpoint.terms import Term, newest_term, next_term, take_term
from paceline.coordinator.checkpoint_completion import CheckpointCompletion
from paceline.core.effects import Complete
from paceline.messages import Checkpoint
from paceline.types import SavedFile

SPEC = model()


def shard(storage: Storage, folder: str) -> SavedFile:
    with storage.create(f"{folder}/server-0.safetensors") as file:
        file.write(b"tensors")
    return SavedFile("server-0.safetensors", 7, "0" * 64, (0,))


def complete(storage: Storage, version: int, *drop: str, incarnation: int = 0, term: int = 0) -> Complete:
    folder = folder_name(incarnation, version, term)
    checkpoint = Checkpoint(folder, position(version))
    return Complete(checkpoint, SPEC, (shard(storage, folder),), ("00",), drop)


def outcome(keeper: CheckpointCompletion) -> tuple[str, str]:
    deadline = time.monotonic() + 20
    while (found := keeper.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def taken(storage: Storage, holder: str = "here") -> Term:
    """Take the next term of a place."""
    return take_term(storage, next_term(newest_term(storage), holder))
