"""The manifest and the marker of a checkpoint: what it contains, and whether it is complete and undamaged."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.checkpoint.storage import Storage
from paceline.core.coordinator.checkpoints import folder_name as folder_name
from paceline.errors import CheckpointError
from paceline.messages import Position
from paceline.types import ModelSpec, SavedFile

MANIFEST = "manifest.json"
MARKER = "COMPLETE"
FORMAT = 1


class LogTip(msgspec.Struct, frozen=True):
    """The newest file of a log on a storage, with its SHA-256. Each file names the one before it."""

    name: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a checkpoint contains, without the tensors.

    `chains` has the hash chain of each block. `made_at`, the time of day, is only for display. A checkpoint outside of
    a run directory also has the `plan` of the run (its `run.json`, without the token), and names the `log` that it
    stands on: with both, a machine that has never seen the run can resume it.
    """

    format: int
    model: ModelSpec
    position: Position
    files: tuple[SavedFile, ...]
    chains: tuple[str, ...]
    made_at: float = 0.0
    plan: dict[str, Any] | None = None
    log: LogTip | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all shard files."""
        return sum(entry.size for entry in self.files)


def parse_folder(name: str) -> tuple[int, int, int] | None:
    """The term, incarnation and version in a name made by `folder_name`; None for any other name."""
    found = re.fullmatch(r"(?:t(\d{4,})-)?i(\d{4,})-v(\d{10,})", name)
    return None if found is None else (int(found[1] or 0), int(found[2]), int(found[3]))


def write_manifest(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Write the manifest, then the marker that makes the checkpoint complete.

    The caller must have synced the log to disk before (rule 9).
    """
    manifest = msgspec.structs.replace(manifest, made_at=time.time())
    # `json` of the standard library can write nan and inf, and a loss may be either.
    content = json.dumps(msgspec.to_builtins(manifest), indent=1).encode()
    with storage.create(f"{folder}/{MANIFEST}") as file:
        file.write(content)
    with storage.create(f"{folder}/{MARKER}") as file:
        file.write(hashlib.sha256(content).hexdigest().encode())


def drop_checkpoint(storage: Storage, folder: str) -> None:
    """Remove a checkpoint. The marker goes first, so that a checkpoint with missing files never counts as complete."""
    storage.delete(f"{folder}/{MARKER}")
    storage.remove(folder)


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """The manifest of a complete checkpoint.

    Raises:
        CheckpointError: the checkpoint is incomplete, or its manifest is damaged or of another format.
    """
    marker = _read(storage, folder, MARKER, "incomplete: ")
    content = _read(storage, folder, MANIFEST)
    if hashlib.sha256(content).hexdigest().encode() != marker:
        raise CheckpointError(folder, f"{MANIFEST} or {MARKER} is damaged: they do not match")
    try:
        manifest = msgspec.convert(json.loads(content), Manifest)
    except ValueError as error:
        raise CheckpointError(folder, f"{MANIFEST} is not a valid manifest: {error}") from None
    if manifest.format != FORMAT:
        raise CheckpointError(
            folder, f"{MANIFEST} has format {manifest.format}; this version of Paceline reads format {FORMAT}"
        )
    position = manifest.position
    at = parse_folder(folder)
    if at is not None and at[1:] != (position.incarnation, position.version):
        other = folder_name(position.incarnation, position.version)
        raise CheckpointError(folder, f"{MANIFEST} belongs to checkpoint {other}")
    return manifest


def _read(storage: Storage, folder: str, name: str, what: str = "") -> bytes:
    try:
        return storage.read(f"{folder}/{name}")
    except FileNotFoundError:
        raise CheckpointError(folder, f"{what}{name} is missing") from None
    except OSError as error:
        raise CheckpointError(folder, f"{name} cannot be read: {error.strerror or error}") from None


def read_checked(storage: Storage, folder: str, entry: SavedFile) -> bytes:
    """The content of a shard file.

    Raises:
        CheckpointError: the file is missing, or does not have the size and SHA-256 that the manifest says.
    """
    content = _read(storage, folder, entry.name)
    if len(content) != entry.size:
        raise CheckpointError(folder, f"{entry.name} has {len(content)} bytes, not {entry.size}")
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise CheckpointError(folder, f"{entry.name} is damaged: its SHA-256 is not the one in the manifest")
    return content


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint that was found. `problem` is None if the checkpoint is complete and undamaged.

    `incomplete` means that the checkpoint was never completed, as after a kill, or is being written: it is not damaged.
    """

    folder: str
    manifest: Manifest | None
    problem: str | None
    incomplete: bool = False

    @property
    def damaged(self) -> bool:
        """Whether the checkpoint was complete once and cannot be used any more."""
        return self.problem is not None and not self.incomplete


def _folders(storage: Storage) -> list[str]:
    """The folders of checkpoints, oldest first."""
    known = [(at, name) for name in storage.folders() if (at := parse_folder(name)) is not None]
    return [name for _, name in sorted(known)]


def _look(storage: Storage, folder: str, *, verify: bool) -> Listed:
    try:
        manifest = read_manifest(storage, folder)
        if verify:
            for entry in manifest.files:
                read_checked(storage, folder, entry)
    except CheckpointError as error:
        return Listed(folder, None, error.problem, incomplete=MARKER not in storage.files(folder))
    return Listed(folder, manifest, None)


def list_checkpoints(storage: Storage, *, verify: bool) -> list[Listed]:
    """All checkpoints, oldest first. With `verify`, every byte of their files is checked."""
    return [_look(storage, folder, verify=verify) for folder in _folders(storage)]


def newest(storage: Storage) -> tuple[Listed | None, list[Listed]]:
    """The newest complete checkpoint, with every byte checked, and the damaged or incomplete ones that are newer."""
    passed_over: list[Listed] = []
    for folder in reversed(_folders(storage)):
        listed = _look(storage, folder, verify=True)
        if listed.problem is None:
            return listed, passed_over
        passed_over.append(listed)
    return None, passed_over
