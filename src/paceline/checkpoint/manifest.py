"""What a checkpoint says of itself, and whether it is what it says."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

import msgspec

from paceline.checkpoint.storage import Storage
from paceline.core.keeping import folder_name as folder_name
from paceline.errors import CheckpointError
from paceline.messages import Position
from paceline.types import ModelSpec, SavedFile

MANIFEST = "manifest.json"
MARKER = "COMPLETE"
FORMAT = 1


class Manifest(msgspec.Struct, frozen=True):
    """All of a checkpoint but its tensors. `chains` has one hash chain a block."""

    format: int
    model: ModelSpec
    position: Position
    files: tuple[SavedFile, ...]
    chains: tuple[str, ...]


def parse_folder(name: str) -> tuple[int, int] | None:
    """The incarnation and version that `folder_name` put into a name; None for any other folder."""
    found = re.fullmatch(r"i(\d{4,})-v(\d{10,})", name)
    return None if found is None else (int(found[1]), int(found[2]))


def write_manifest(storage: Storage, folder: str, manifest: Manifest) -> None:
    """Write the manifest, then the marker that makes the checkpoint count. The caller has synced the log before."""
    # By the standard library, which has names for nan and inf: a loss may be either.
    content = json.dumps(msgspec.to_builtins(manifest), indent=1).encode()
    with storage.create(f"{folder}/{MANIFEST}") as file:
        file.write(content)
    with storage.create(f"{folder}/{MARKER}") as file:
        file.write(hashlib.sha256(content).hexdigest().encode())


def drop_checkpoint(storage: Storage, folder: str) -> None:
    """Remove a checkpoint, its marker first: at no moment is it half there and taken for whole."""
    storage.delete(f"{folder}/{MARKER}")
    storage.remove(folder)


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """The manifest of a complete checkpoint.

    Raises:
        CheckpointError: it is not complete, or not what its marker says.
    """
    try:
        marker = storage.read(f"{folder}/{MARKER}")
        content = storage.read(f"{folder}/{MANIFEST}")
    except FileNotFoundError as error:
        raise CheckpointError(folder, f"incomplete: {error.filename or error} is missing") from None
    if hashlib.sha256(content).hexdigest().encode() != marker:
        raise CheckpointError(folder, f"{MANIFEST} is damaged: it does not match {MARKER}")
    try:
        manifest = msgspec.convert(json.loads(content), Manifest)
    except ValueError as error:
        raise CheckpointError(folder, f"{MANIFEST} is not understood: {error}") from None
    if manifest.format != FORMAT:
        raise CheckpointError(folder, f"format {manifest.format} is not known here")
    return manifest


def read_checked(storage: Storage, folder: str, entry: SavedFile) -> bytes:
    """The content of a shard file.

    Raises:
        CheckpointError: it is missing, or its size or SHA-256 is not the manifest's.
    """
    try:
        content = storage.read(f"{folder}/{entry.name}")
    except FileNotFoundError:
        raise CheckpointError(folder, f"{entry.name} is missing") from None
    if len(content) != entry.size:
        raise CheckpointError(folder, f"{entry.name} has {len(content)} bytes, not {entry.size}")
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise CheckpointError(folder, f"{entry.name} is damaged: its SHA-256 is not the manifest's")
    return content


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint as found: `problem` is None when it is whole."""

    folder: str
    manifest: Manifest | None
    problem: str | None


def list_checkpoints(storage: Storage, *, verify: bool) -> list[Listed]:
    """All checkpoints, oldest first; with `verify`, every byte is checked."""
    found = []
    for folder in storage.folders():
        if not folder.startswith("i"):
            continue
        try:
            manifest = read_manifest(storage, folder)
            if verify:
                for entry in manifest.files:
                    read_checked(storage, folder, entry)
            found.append(Listed(folder, manifest, None))
        except CheckpointError as error:
            found.append(Listed(folder, None, error.problem))
    return found


def newest(storage: Storage) -> tuple[Listed | None, list[Listed]]:
    """The newest whole checkpoint, and the damaged or incomplete ones that are newer."""
    passed_over: list[Listed] = []
    for listed in reversed(list_checkpoints(storage, verify=False)):
        if listed.manifest is None:
            passed_over.append(listed)
            continue
        try:
            for entry in listed.manifest.files:
                read_checked(storage, listed.folder, entry)
        except CheckpointError as error:
            passed_over.append(Listed(listed.folder, None, error.problem))
            continue
        return listed, passed_over
    return None, passed_over
