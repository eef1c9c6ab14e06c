"""Blocks with their optimizer state <-> shard files in safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from safetensors.torch import load, save

from paceline.checkpoint.manifest import FileEntry, Manifest, read_checked
from paceline.checkpoint.storage import Storage
from paceline.errors import CheckpointError

_PART_NBYTES = 64 << 20  # a file of at most about this size is made in memory at once


@dataclass(slots=True)
class BlockState:
    """One block at one version: its value, and its optimizer state by piece and name."""

    value: torch.Tensor
    state: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(t.nbytes for t in (self.value, *self.state.values()))


def write_shards(storage: Storage, folder: str, prefix: str, blocks: Mapping[int, BlockState]) -> list[FileEntry]:
    """Write `blocks` as one or more files whose names begin with `prefix`; returns what the manifest must say."""
    entries = []
    for number, part in enumerate(_parts(blocks)):
        tensors: dict[str, torch.Tensor] = {}
        for index, block in part:
            tensors[f"{index}/value"] = block.value
            for (piece, name), tensor in block.state.items():
                tensors[f"{index}/{piece}/{name}"] = tensor
        content = save(tensors)
        name = f"{prefix}-{number:04d}.safetensors"
        with storage.create(f"{folder}/{name}") as file:
            file.write(content)
        digest = hashlib.sha256(content).hexdigest()
        entries.append(FileEntry(name, len(content), digest, tuple(index for index, _ in part)))
    return entries


def _parts(blocks: Mapping[int, BlockState]) -> Iterator[list[tuple[int, BlockState]]]:
    part: list[tuple[int, BlockState]] = []
    size = 0
    for index, block in blocks.items():
        if part and size + block.nbytes > _PART_NBYTES:
            yield part
            part, size = [], 0
        part.append((index, block))
        size += block.nbytes
    if part:
        yield part


def read_shards(
    storage: Storage, folder: str, manifest: Manifest, wanted: Iterable[int]
) -> Iterator[tuple[int, BlockState]]:
    """The wanted blocks, file by file, each file checked before it is parsed.

    Raises:
        CheckpointError: a file is missing or damaged, or a block is in none of them.
    """
    left = set(wanted)
    for entry in manifest.files:
        here = left.intersection(entry.blocks)
        if not here:
            continue
        tensors = load(read_checked(storage, folder, entry))
        for index in sorted(here):
            yield index, _block(tensors, index)
        left -= here
    if left:
        raise CheckpointError(folder, f"no file holds block {min(left)}")


def _block(tensors: Mapping[str, torch.Tensor], index: int) -> BlockState:
    block = BlockState(tensors[f"{index}/value"])
    for key, tensor in tensors.items():
        head, *rest = key.split("/", 2)
        if int(head) == index and len(rest) == 2:
            block.state[int(rest[0]), rest[1]] = tensor
    return block
