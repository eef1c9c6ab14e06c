"""The user's files beside the checkpoints of a run: a manifest and one file with all contents, written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.checkpoint.storage import Storage
from paceline.core.files.manifest import FileManifest, decode, is_digest
from paceline.engines.bundle.store import Store
from paceline.errors import FilesError

FOLDER = "files"
MANIFEST = "manifest.json"
"""The manifest beside the contents that `read_files` has read."""


def write_files(storage: Storage, manifest: FileManifest, store: Store) -> None:
    """Write the files of `manifest`, whose contents are in `store`, unless the storage has them.

    Raises:
        FilesError: a content is missing or damaged.
        OSError: the storage is full or cannot be reached.
    """
    there = storage.files(FOLDER)
    names = _names(manifest.digest)
    if set(names) <= set(there):
        return
    listed, packed = names
    with storage.create(f"{FOLDER}/{packed}") as file:
        for digest in manifest.contents:
            for chunk in store.read(digest):
                file.write(chunk)
    with storage.create(f"{FOLDER}/{listed}") as file:  # the last: where it is, the contents are
        file.write(manifest.encode())


def read_files(storage: Storage, digest: str, folder: Path, limit_nbytes: int) -> tuple[FileManifest, Store]:
    """Read the files whose manifest has this `digest` into a new store in `folder`.

    Raises:
        FilesError: they are missing, damaged or larger than `limit_nbytes`.
    """
    if not is_digest(digest):
        raise FilesError(f"{digest[:80]!r} is not the digest of a manifest")
    listed, packed = _names(digest)
    manifest = decode(_read(storage, listed), limit_nbytes)
    if manifest.digest != digest:
        raise FilesError(f"{FOLDER}/{listed} at {storage.url} is damaged: its SHA-256 is another one")
    content = memoryview(_read(storage, packed))
    if len(content) != sum(manifest.contents.values()):
        raise FilesError(f"{FOLDER}/{packed} at {storage.url} is damaged: it has {len(content)} bytes")
    folder.mkdir(parents=True, exist_ok=True)
    store, offset = Store(folder, limit_nbytes), 0
    missing = store.missing(manifest)
    for name, nbytes in manifest.contents.items():
        if name in missing:
            store.write(name, nbytes, _chunks(content[offset : offset + nbytes]))
        offset += nbytes
    (folder / MANIFEST).write_bytes(manifest.encode())
    return manifest, store


def _names(digest: str) -> tuple[str, str]:
    return f"{digest}.json", f"{digest}.contents"


def _read(storage: Storage, name: str) -> bytes:
    try:
        return storage.read(f"{FOLDER}/{name}")
    except OSError as error:
        raise FilesError(f"{FOLDER}/{name} at {storage.url} cannot be read: {error.strerror or error}") from None


def _chunks(content: memoryview) -> Iterator[bytes]:
    for at in range(0, len(content), 1 << 20):
        yield bytes(content[at : at + (1 << 20)])
