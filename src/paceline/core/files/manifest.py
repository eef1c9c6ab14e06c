"""The manifest of a run's files: their names below one directory, and the SHA-256 of each content.

A manifest comes from another machine or from a storage. `decode` therefore checks everything that it declares, before
anybody makes a file or allocates memory for one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise

import msgspec

from paceline.errors import FilesError

LIMIT_NBYTES = 256 << 20
"""The largest sum of all files of a run, unless the user sets another one (`--files-limit`)."""

MAX_FILES = 20_000
MAX_MANIFEST_NBYTES = 8 << 20
MAX_PATH_NBYTES = 1024
MAX_NAME_NBYTES = 255
MAX_DEPTH = 32

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = 80  # characters of a name in a message: the name may be anything


class FileEntry(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One file: its path below the directory, with ``/`` between parts, and its content."""

    path: str
    sha256: str
    nbytes: int
    executable: bool = False


class FileManifest(msgspec.Struct, frozen=True):
    """The files of a run, sorted by path. Make one with `manifest_of` or `decode`: both check it."""

    entries: tuple[FileEntry, ...]

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest: it names the files and all their contents."""
        return sha256(self.encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.nbytes for entry in self.entries)

    @property
    def contents(self) -> dict[str, int]:
        """The size of each content by its digest. Files with the same content count once."""
        return {entry.sha256: entry.nbytes for entry in self.entries}

    def encode(self) -> bytes:
        """The manifest as bytes; equal manifests have equal bytes."""
        return msgspec.json.encode(self)


def manifest_of(entries: Iterable[FileEntry], limit_nbytes: int = LIMIT_NBYTES) -> FileManifest:
    """The manifest of these files.

    Raises:
        FilesError: see `decode`.
    """
    made = FileManifest(tuple(sorted(entries)))
    _check(made, limit_nbytes)
    return made


def decode(content: bytes | memoryview, limit_nbytes: int = LIMIT_NBYTES) -> FileManifest:
    """Decode a manifest and check it.

    Raises:
        FilesError: the bytes are no manifest; a path is absolute, leaves its directory, is too long or too deep, occurs
            twice or lies below a file; a digest is none; or the files have more than `limit_nbytes` bytes.
    """
    if len(content) > MAX_MANIFEST_NBYTES:
        raise FilesError(f"the manifest has {len(content)} bytes; at most {MAX_MANIFEST_NBYTES} are allowed")
    try:
        found = msgspec.json.decode(content, type=FileManifest)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise FilesError(f"this is not a manifest of files: {error}") from None
    _check(found, limit_nbytes)
    return found


def check_path(path: str) -> None:
    """Check that `path` names a file below a directory, whatever that directory is.

    Raises:
        FilesError: it may not, or not on every system.
    """
    try:
        parts = [part.encode() for part in path.split("/")]
    except UnicodeEncodeError:
        raise _refused(path, "is not UTF-8") from None
    if len(parts) > MAX_DEPTH or sum(map(len, parts)) + len(parts) - 1 > MAX_PATH_NBYTES:
        raise _refused(path, f"has more than {MAX_DEPTH} parts or {MAX_PATH_NBYTES} bytes")
    if any(ord(letter) < 32 or letter in "\\\x7f" for letter in path):
        raise _refused(path, "has a backslash or a control character")
    for part in parts:
        if part in (b"", b".", b".."):
            raise _refused(path, "is not a plain path below its directory")
        if len(part) > MAX_NAME_NBYTES:
            raise _refused(path, f"has a part of more than {MAX_NAME_NBYTES} bytes")
        if part.lower() == b".git":  # git runs the hooks of a repository that it finds there
            raise _refused(path, "lies in a git repository's own folder")


def is_digest(text: str) -> bool:
    """Whether `text` is a SHA-256 in hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


def _check(manifest: FileManifest, limit_nbytes: int) -> None:
    entries = manifest.entries
    if len(entries) > MAX_FILES:
        raise FilesError(f"the manifest has {len(entries)} files; at most {MAX_FILES} are allowed")
    folders: set[str] = set()
    sizes: dict[str, int] = {}
    for entry in entries:
        check_path(entry.path)
        if not is_digest(entry.sha256):
            raise _refused(entry.path, f"has the digest {entry.sha256[:_SHOWN]!r}, which is no SHA-256")
        if entry.nbytes < 0 or sizes.setdefault(entry.sha256, entry.nbytes) != entry.nbytes:
            raise _refused(entry.path, f"has an impossible size, {entry.nbytes}")
        above = entry.path
        while above := above.rpartition("/")[0]:
            folders.add(above)
    paths = [entry.path for entry in entries]
    for before, path in pairwise(paths):
        if before >= path:
            raise _refused(path, "occurs twice or is not in its order")
    if both := folders.intersection(paths):
        raise _refused(min(both), "is a file and a folder")
    if manifest.nbytes > limit_nbytes:
        raise FilesError(
            f"the files have {manifest.nbytes} bytes; at most {limit_nbytes} are allowed. Raise the limit with "
            "--files-limit"
        )


def _refused(path: str, why: str) -> FilesError:
    return FilesError(f"the file {path[:_SHOWN]!r} {why}")
