"""Writes blocks with their optimizer state to shard files in the safetensors format, and reads them.

Files are written in small steps, without a copy of all tensors: a server saves while it trains, and the functions of
the safetensors library make two copies. Any reader of safetensors can open the files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

import torch

from paceline.blocks.block_state import BlockState
from paceline.blocks.tensors import bytes_of
from paceline.checkpoint.manifest import Manifest, read_checked
from paceline.checkpoint.storage import Storage
from paceline.errors import CheckpointError
from paceline.types import SavedFile

_FILE_NBYTES = 64 << 20  # the largest file, unless one block is larger: a reader loads one file at a time
_RUN_NBYTES = 4 << 20  # bytes of one write
_ALIGN = 8

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def write_shards(
    storage: Storage,
    folder: str,
    prefix: str,
    blocks: Mapping[int, BlockState],
    check: Callable[[], None] = lambda: None,
) -> list[SavedFile]:
    """Write `blocks` to one or more files whose names begin with `prefix`; returns their entries for the manifest.

    `check` is called every few MB and at the end; it may raise to stop the writing. After any exception all files are
    removed.

    Raises:
        OSError: the storage is full or cannot be reached.
    """
    entries: list[SavedFile] = []
    try:
        for number, chosen in enumerate(_files(blocks)):
            name = f"{prefix}-{number:04d}.safetensors"
            with storage.create(f"{folder}/{name}") as file:
                size, digest = _write(file, _named(chosen), check)
            entries.append(SavedFile(name, size, digest, tuple(index for index, _ in chosen)))
        check()
    except BaseException:
        for entry in entries:
            with contextlib.suppress(OSError):
                storage.delete(f"{folder}/{entry.name}")
        raise
    return entries


def _files(blocks: Mapping[int, BlockState]) -> Iterator[list[tuple[int, BlockState]]]:
    """Divide the blocks into files of at most `_FILE_NBYTES`."""
    chosen: list[tuple[int, BlockState]] = []
    size = 0
    for index, block in blocks.items():
        if chosen and size + block.nbytes > _FILE_NBYTES:
            yield chosen
            chosen, size = [], 0
        chosen.append((index, block))
        size += block.nbytes
    if chosen:
        yield chosen


def _named(blocks: Iterable[tuple[int, BlockState]]) -> dict[str, torch.Tensor]:
    tensors = {}
    for index, block in blocks:
        tensors[f"{index}/value"] = block.value
        for (piece, name), tensor in block.state.items():
            tensors[f"{index}/{piece}/{name}"] = tensor
    return tensors


def _write(file: IO[bytes], tensors: Mapping[str, torch.Tensor], check: Callable[[], None]) -> tuple[int, str]:
    """Write one file; returns its size and SHA-256."""
    # Tensors with larger elements first, so that each one is aligned to its element size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header: dict[str, object] = {}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGN)
    first = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256()
    for run in _runs([memoryview(first), *(bytes_of(tensor) for _, tensor in ordered)]):
        check()
        file.write(run)
        digest.update(run)
    return len(first) + end, digest.hexdigest()


def _runs(contents: Iterable[memoryview]) -> Iterator[memoryview]:
    """Join the bytes of `contents` and yield them in long runs, each valid until the next one is taken.

    Long runs are faster: writing and hashing do not hold the interpreter's lock, but between two of them this thread
    may have to wait for the lock.
    """
    run = memoryview(
        mmap.mmap(-1, _RUN_NBYTES)
    )  # memory that begins at a page: writes that bypass the page cache need this
    fill = 0
    for content in contents:
        done = 0
        while done < content.nbytes:
            copied = content[done : done + _RUN_NBYTES - fill]
            run[fill : fill + copied.nbytes] = copied
            fill += copied.nbytes
            done += copied.nbytes
            if fill == _RUN_NBYTES:
                yield run
                fill = 0
    if fill:
        yield run[:fill]


def read_shards(
    storage: Storage, folder: str, manifest: Manifest, wanted: Iterable[int]
) -> Iterator[tuple[int, BlockState]]:
    """Read the `wanted` blocks, file by file. Each file is checked before it is parsed. The tensors are new copies.

    Raises:
        CheckpointError: a file is missing or damaged, or no file has a wanted block.
    """
    left = set(wanted)
    for entry in manifest.files:
        here = left.intersection(entry.blocks)
        if not here:
            continue
        yield from _read(read_checked(storage, folder, entry), here)
        left -= here
    if left:
        raise CheckpointError(folder, f"no file holds block {min(left)}")


def _read(content: bytes, wanted: set[int]) -> Iterator[tuple[int, BlockState]]:
    """The wanted blocks of one file, each copied out of it."""
    start = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8:start])
    names: dict[int, list[str]] = {}
    for name in header:
        names.setdefault(int(name.split("/", 1)[0]), []).append(name)
    data = memoryview(content)[start:]
    for index in sorted(wanted):
        block = BlockState(torch.empty(0))
        for name in names[index]:
            entry = header[name]
            tensor = torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])
            first, end = entry["data_offsets"]
            bytes_of(tensor)[:] = data[first:end]
            _, *rest = name.split("/", 2)
            if len(rest) == 1:
                block.value = tensor
            else:
                block.state[int(rest[0]), rest[1]] = tensor
        yield index, block
