"""A file has all its bytes, with direct output and without it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from paceline.checkpoint.storage import LocalStorage

PIECE = 1 << 16


@pytest.mark.parametrize("direct", ["as the medium can", "refused when opened"])
@pytest.mark.parametrize("sizes", [(PIECE, PIECE), (PIECE, PIECE, 77), (77, PIECE), (PIECE, 3, PIECE, 0, 5), ()])
def test_writes_of_any_size_arrive_in_order(
    sizes: tuple[int, ...], direct: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if direct != "as the medium can":
        plain = os.open

        def refuse(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_DIRECT:
                raise OSError(22, "Invalid argument")
            return plain(path, flags, mode)

        monkeypatch.setattr(os, "open", refuse)
    storage = LocalStorage(tmp_path)
    buffer = memoryview(mmap.mmap(-1, PIECE))  # aligned, as in `write_shards`
    expected = b""
    with storage.create("folder/file") as file:
        for number, size in enumerate(sizes):
            buffer[:] = bytes([number + 1]) * PIECE
            assert file.write(buffer[:size]) == size
            expected += bytes(buffer[:size])
    assert storage.read("folder/file") == expected
