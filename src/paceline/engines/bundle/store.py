"""A store of contents in a directory: one file per content, named by its SHA-256."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from paceline.core.files.manifest import FileManifest, is_digest
from paceline.core.files.sender import PIECE_NBYTES
from paceline.errors import FilesError

CHUNK_NBYTES = PIECE_NBYTES
"""How many bytes of a file are read or written at once."""

STORE_NBYTES = 1 << 30
"""How many bytes a store takes, unless its owner says otherwise."""


class _NewContent:
    """One content on its way into a store, under a temporary name. Any number of writers may write the same content."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self._path = path
        self._nbytes = nbytes
        self._digest = hashlib.sha256()
        self._written = 0
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            self._file = os.open(self._temporary, flags, 0o600)
        except OSError as error:
            raise _cannot(path, error) from None

    def add(self, data: bytes) -> None:
        """As `ContentWriter.add`."""
        if self._written + len(data) > self._nbytes:
            self._fail(f"it has more than the {self._nbytes} bytes that its manifest declares")
        self._written += len(data)
        self._digest.update(data)
        left = memoryview(data)
        try:
            while left.nbytes:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self.abort()
            raise _cannot(self._path, error) from None

    def finish(self) -> None:
        """As `ContentWriter.finish`."""
        if self._written != self._nbytes:
            self._fail(f"it has {self._written} bytes, not {self._nbytes}")
        if self._digest.hexdigest() != self._path.name:
            self._fail("its SHA-256 is another one")
        try:
            os.close(self._file)
            self._file = -1
            self._temporary.replace(self._path)
        except OSError as error:
            self.abort()
            raise _cannot(self._path, error) from None

    def abort(self) -> None:
        """As `ContentWriter.abort`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _fail(self, why: str) -> None:
        self.abort()
        raise FilesError(f"the content {self._path.name[:12]} is refused: {why}")


class Store:
    """Contents of files, by SHA-256, in the directory `folder`. It never holds more than `limit_nbytes`.

    A content appears complete and checked, or not at all. Several processes may use one store.
    """

    def __init__(self, folder: Path, limit_nbytes: int = STORE_NBYTES) -> None:
        self._folder = folder
        self._limit_nbytes = limit_nbytes

    def missing(self, manifest: FileManifest) -> set[str]:
        """The digests of the contents that the store lacks.

        Raises:
            FilesError: with them the store would exceed its limit.
        """
        lacks = {digest: nbytes for digest, nbytes in manifest.contents.items() if self._size(digest) != nbytes}
        if lacks:
            self._check_room(sum(lacks.values()))
        return set(lacks)

    def writing(self, digest: str, nbytes: int) -> _NewContent:
        """As `ContentStore.writing`. The caller has asked `missing` before, which checks the limit of the store."""
        if nbytes > self._limit_nbytes:
            raise FilesError(f"a content of {nbytes} bytes is refused: the store takes {self._limit_nbytes}")
        return _NewContent(self._path(digest), nbytes)

    def write(self, digest: str, nbytes: int, chunks: Iterable[bytes]) -> None:
        """Keep the content that `chunks` make up.

        Raises:
            FilesError: it does not have this size and SHA-256, or cannot be written; nothing is left of it.
        """
        writer = self.writing(digest, nbytes)
        try:
            for chunk in chunks:
                writer.add(chunk)
        except BaseException:
            writer.abort()
            raise
        writer.finish()

    def read(self, digest: str) -> Iterator[bytes]:
        """Yield a content in chunks of at most 128 KiB. They are checked: a damaged content is removed.

        Raises:
            FilesError: the content is missing or damaged; the latter is known only after the last chunk.
        """
        path, found = self._path(digest), hashlib.sha256()
        with self._open(digest) as descriptor:
            while chunk := os.read(descriptor, CHUNK_NBYTES):
                found.update(chunk)
                yield chunk
        if found.hexdigest() != digest:
            path.unlink(missing_ok=True)
            raise FilesError(f"the content {digest[:12]} in {self._folder} was damaged and is removed: try again")

    def read_at(self, digest: str, offset: int, nbytes: int) -> bytes:
        """As `ContentReader.read_at`. The receiver checks the content."""
        with self._open(digest) as descriptor:
            data = os.pread(descriptor, nbytes, offset)
        if len(data) != nbytes:
            raise FilesError(f"the content {digest[:12]} in {self._folder} ends before byte {offset + nbytes}")
        return data

    @contextlib.contextmanager
    def _open(self, digest: str) -> Iterator[int]:
        try:
            descriptor = os.open(self._path(digest), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise FilesError(f"the content {digest[:12]} cannot be read in {self._folder}: {error.strerror}") from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise FilesError(f"{digest[:80]!r} is not the digest of a content")
        return self._folder / digest[:2] / digest

    def _size(self, digest: str) -> int | None:
        path = self._path(digest)
        return path.lstat().st_size if path.is_file() and not path.is_symlink() else None

    def _check_room(self, nbytes: int) -> None:
        used = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(OSError):  # another writer gives it its name just now
                    used += os.lstat(Path(folder) / name).st_size
        if used + nbytes > self._limit_nbytes:
            raise FilesError(
                f"the store {self._folder} has {used} bytes and takes {self._limit_nbytes}: there is no room for "
                f"{nbytes} more. Remove files that the script does not need, or raise --files-limit"
            )


def _cannot(path: Path, error: OSError) -> FilesError:
    return FilesError(f"cannot write {path}: {error.strerror}")
