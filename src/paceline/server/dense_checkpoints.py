"""Dense blocks: loaded from a checkpoint, and frozen to be written to the next one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline.blocks.block_state import FrozenContents, FrozenVersion
from paceline.checkpoint.manifest import read_manifest
from paceline.checkpoint.shards import read_shards
from paceline.checkpoint.storage import Storage
from paceline.errors import CheckpointError
from paceline.server.dense_sums import DenseSums
from paceline.server.held_blocks import HeldBlocks


class DenseCheckpoints:
    """`Checkpoints` of the core over torch tensors. `frozen` is the version to be written, until it is written."""

    def __init__(self, held: HeldBlocks, sums: DenseSums, storage: Storage | None) -> None:
        self.frozen: FrozenVersion | None = None
        self._held = held
        self._sums = sums
        self._storage = storage

    def reset(self) -> None:
        """Forget the frozen version: the store has opened other blocks."""
        self.frozen = None

    def save(self, version: int, without: Collection[int] = ()) -> None:
        """Freeze the current version, to write all blocks but those in `without`.

        Its memory is not copied; nothing writes to it until `frozen` is released.
        """
        assert version == self._held.versions.number
        blocks = self._held.snapshot()
        self.frozen = FrozenVersion(version, {index: blocks[index] for index in blocks if index not in without})
        self._sums.economise(True)
        self._held.freeze(self.frozen)

    def freeze(self) -> FrozenContents:
        """The current version, to be hashed. Its memory is not copied; nothing writes to it until it is released."""
        held = self._held
        contents = FrozenContents(held.versions.number, held.snapshot(), held.blocks)
        held.freeze(contents)
        return contents

    def thaw(self) -> None:
        """Forget the frozen version, which is written or given up. Its memory is used again once its reader is done."""
        self.frozen = None
        self._sums.economise(False)

    def load(self, folder: str, version: int) -> Mapping[int, bytes]:
        """Fill the open blocks from a checkpoint of `version`, one file at a time; returns their hash chains.

        Raises:
            CheckpointError: the checkpoint cannot be read, or is of another version, model or optimizer.
        """
        held = self._held
        if self._storage is None:
            raise CheckpointError(folder, "this server was started without a place for checkpoints")
        manifest = read_manifest(self._storage, folder)
        if manifest.position.version != version:
            raise CheckpointError(folder, f"the checkpoint holds version {manifest.position.version}, not {version}")
        theirs, mine = manifest.model, held.spec
        if (theirs.tensors, theirs.optimizer.name) != (mine.tensors, mine.optimizer.name):
            raise CheckpointError(folder, "the checkpoint was saved by another model or another optimizer")
        held.fill(version, read_shards(self._storage, folder, manifest, held.blocks))
        return {index: bytes.fromhex(manifest.chains[index]) for index in held.blocks}
