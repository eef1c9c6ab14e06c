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


def test_a_folder_that_another_writer_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer whose file failed removes the empty folder just before this writer opens its file there."""
    plain = os.open
    removed: list[str] = []

    def remove_first(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".part") and len(removed) < 3:
            Path(path).parent.rmdir()
            removed.append(path)
        return plain(path, flags, mode)

    monkeypatch.setattr(os, "open", remove_first)
    storage = LocalStorage(tmp_path)
    with storage.create("folder/file") as file:
        file.write(b"content")
    assert len(removed) == 3
    assert storage.read("folder/file") == b"content"


def test_a_folder_that_cannot_stay_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def remove_always(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".part"):
            Path(path).parent.rmdir()
        return plain(path, flags, mode)

    monkeypatch.setattr(os, "open", remove_always)
    with pytest.raises(FileNotFoundError), LocalStorage(tmp_path).create("folder/file"):
        pass
