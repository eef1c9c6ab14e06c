"""Unpacks the files of a manifest into a new directory, and never writes outside of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from paceline.core.files.manifest import FileEntry, FileManifest, check_path
from paceline.engines.bundle.store import CHUNK_NBYTES, Store
from paceline.errors import FilesError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def unpack(manifest: FileManifest, store: Store, into: Path) -> None:
    """Make the directory `into` with the files of `manifest`, whose contents are in `store`.

    The directory appears when it is complete. If it is there already with these files, nothing is done; other files
    in it, such as the output of a script, do not matter.

    Raises:
        FilesError: a content is missing or damaged, a file cannot be written, or `into` is there with other files.
    """
    for entry in manifest.entries:
        check_path(entry.path)
    if os.path.lexists(into):
        _check_there(manifest, into)
        return
    temporary = into.with_name(f".{into.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.mkdir(mode=0o700, parents=True)
        for entry in manifest.entries:
            _write(temporary, entry, store)
        _put(temporary, into, manifest)
    except OSError as error:
        raise FilesError(f"cannot unpack {error.filename or ''} into {into}: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(temporary: Path, into: Path, manifest: FileManifest) -> None:
    try:
        temporary.rename(into)
    except OSError:
        if not into.is_dir():
            raise
        _check_there(manifest, into)  # another process was faster


def _write(root: Path, entry: FileEntry, store: Store) -> None:
    *folders, name = entry.path.split("/")
    with _folder(root, folders, make=True) as folder:
        file = os.open(name, _NEW, 0o755 if entry.executable else 0o644, dir_fd=folder)
        with os.fdopen(file, "wb") as out:
            for chunk in store.read(entry.sha256):
                out.write(chunk)


@contextlib.contextmanager
def _folder(root: Path, folders: list[str], *, make: bool) -> Iterator[int]:
    """Open a folder below `root` step by step: a symbolic link on the way is an error, not a way out."""
    descriptor = os.open(root, _FOLDER)
    try:
        for name in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=descriptor)
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _check_there(manifest: FileManifest, into: Path) -> None:
    """Check that the directory `into` holds exactly these contents under these names."""
    if into.is_symlink() or not into.is_dir():
        raise FilesError(f"{into} is in the way: it is not a directory. Remove it")
    for entry in manifest.entries:
        *folders, name = entry.path.split("/")
        found = hashlib.sha256()
        try:
            with _folder(into, folders, make=False) as folder:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                with os.fdopen(file, "rb") as content:
                    while chunk := content.read(CHUNK_NBYTES):
                        found.update(chunk)
        except OSError as error:
            raise FilesError(f"{into} is there without {entry.path} ({error.strerror}): remove {into}") from None
        if found.hexdigest() != entry.sha256:
            raise FilesError(f"{into} is there with another {entry.path}: remove {into}")
