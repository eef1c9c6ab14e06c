"""Finds the checkpoint that a command line names: a version of a run, or the folder of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.checkpoint.manifest import MANIFEST, Listed, Manifest, list_checkpoints, newest, read_manifest
from paceline.checkpoint.storage import Storage, open_storage
from paceline.errors import UsageError
from paceline.runtime.rundir import RunDir

LAST = "last"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A complete checkpoint: where it is, and the plan of its run ({} if that is not known)."""

    storage: Storage
    folder: str
    manifest: Manifest
    plan: dict[str, Any]
    run: RunDir | None


def choose_checkpoint(where: Path, version: str = LAST) -> Chosen:
    """The checkpoint of `version` (a number, or ``last``) of the run in `where`; or `where`, if it is a checkpoint.

    Raises:
        UsageError: there is no such checkpoint; the message names those that there are.
        CheckpointError: the checkpoint is damaged.
    """
    if (where / MANIFEST).is_file():
        return _at(where)
    run = RunDir.named(where)
    storage = open_storage(run.checkpoints)
    plan = run.plan()
    if version == LAST:
        found, _ = newest(storage)
    else:
        found = _numbered(list_checkpoints(storage, verify=False), version, where)
    if found is None or found.manifest is None:
        raise UsageError(f"{where} has no complete checkpoint yet: wait for the first one (--checkpoint-every)")
    return Chosen(storage, found.folder, found.manifest, plan or found.manifest.plan or {}, run)


def _at(folder: Path) -> Chosen:
    folder = folder.resolve()
    storage = open_storage(folder.parent)
    manifest = read_manifest(storage, folder.name)
    beside = RunDir(folder.parent.parent)
    run = beside if beside.plan_file.is_file() else None
    return Chosen(storage, folder.name, manifest, (run.plan() if run is not None else manifest.plan) or {}, run)


def _numbered(found: list[Listed], version: str, where: Path) -> Listed:
    if not version.isdecimal():
        raise UsageError(f"{version!r} is not a version: give {LAST} or the number of a checkpoint")
    complete = [one for one in found if one.manifest is not None]
    for one in reversed(complete):
        if one.manifest is not None and one.manifest.position.version == int(version):
            return one
    known = ", ".join(str(one.manifest.position.version) for one in complete if one.manifest is not None)
    raise UsageError(f"{where} has no checkpoint of version {version}; it has those of: {known or 'none'}")
