"""The user's files beside the checkpoints are written once, and checked when they are read."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from paceline.checkpoint.storage import LocalStorage, Storage, open_storage
from paceline.core.files.manifest import FileEntry, FileManifest, manifest_of
from paceline.engines.bundle.packed import read_files, write_files
from paceline.engines.bundle.store import Store
from paceline.errors import FilesError

CONTENTS = {"train.py": b"x = 1\n", "data/big.bin": bytes(range(256)) * 9000, "copy.py": b"x = 1\n", "empty": b""}
LIMIT = 10 << 20


def made(folder: Path) -> tuple[FileManifest, Store]:
    store = Store(folder)
    entries = [FileEntry(name, sha256(content).hexdigest(), len(content)) for name, content in CONTENTS.items()]
    for entry in entries:
        store.write(entry.sha256, entry.nbytes, [CONTENTS[entry.path]])
    return manifest_of(entries), store


@pytest.mark.parametrize("where", ["local", "memory"])
def test_files_come_back_whole(where: str, tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "ckpt" if where == "local" else f"memory://{tmp_path.name}")
    manifest, store = made(tmp_path / "store")
    write_files(storage, manifest, store)
    found, copy = read_files(storage, manifest.digest, tmp_path / "copy", LIMIT)
    assert found == manifest
    for entry in found.entries:
        assert b"".join(copy.read(entry.sha256)) == CONTENTS[entry.path]
    assert len(storage.files("files")) == 2


def test_files_are_written_once(tmp_path: Path) -> None:
    class Counting(LocalStorage):
        writes = 0

        def create(self, name: str):  # type: ignore[no-untyped-def]
            self.writes += 1
            return super().create(name)

    storage = Counting(tmp_path / "ckpt")
    manifest, store = made(tmp_path / "store")
    write_files(storage, manifest, store)
    write_files(storage, manifest, store)
    assert storage.writes == 2


def change(storage: Storage, name: str, content: bytes) -> None:
    with storage.create(f"files/{name}") as file:
        file.write(content)


def test_missing_damaged_and_large_files_are_refused_by_name(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "ckpt")
    manifest, store = made(tmp_path / "store")
    digest = manifest.digest
    write_files(storage, manifest, store)
    listed, packed = (storage.read(f"files/{digest}.{end}") for end in ("json", "contents"))
    with pytest.raises(FilesError, match="--files-limit"):
        read_files(storage, digest, tmp_path / "a", 1000)
    with pytest.raises(FilesError, match="not the digest"):
        read_files(storage, "../../etc/passwd", tmp_path / "a", LIMIT)
    change(storage, f"{digest}.contents", packed[:-1])
    with pytest.raises(FilesError, match="is damaged: it has"):
        read_files(storage, digest, tmp_path / "a", LIMIT)
    change(storage, f"{digest}.contents", packed[:-1] + bytes([packed[-1] ^ 1]))
    with pytest.raises(FilesError, match="SHA-256"):
        read_files(storage, digest, tmp_path / "b", LIMIT)
    change(storage, f"{digest}.json", listed.replace(b"train.py", b"other.py"))
    with pytest.raises(FilesError):
        read_files(storage, digest, tmp_path / "c", LIMIT)
    storage.delete(f"files/{digest}.json")
    with pytest.raises(FilesError, match="cannot be read"):
        read_files(storage, digest, tmp_path / "d", LIMIT)
