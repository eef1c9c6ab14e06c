"""Makes the manifest of the files that a run needs on every host, and copies their contents into a store."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from paceline.core.files.manifest import LIMIT_NBYTES, MAX_FILES, FileEntry, FileManifest, check_path, manifest_of
from paceline.engines.bundle.listing import list_files
from paceline.engines.bundle.store import CHUNK_NBYTES, Store
from paceline.engines.fingerprint import fingerprint
from paceline.errors import FilesError

_LARGEST = 5  # how many files or folders a message names
_MIB = 1 << 20


def collect(
    root: Path, script: Path, limit_nbytes: int = LIMIT_NBYTES, *, exclude: Collection[Path] = ()
) -> FileManifest:
    """The manifest of the files below `root` (`RunPlan.code_root`) that the hosts of a run need.

    These are the files that `list_files` finds, and the script with the modules that it imports from `root`, even if
    git ignores them. `exclude` has paths that are left out, such as the place of the checkpoints.

    Raises:
        FilesError: the files have more than `limit_nbytes` bytes in all, or one of them cannot be read or sent.
        UsageError: the script cannot be read.
    """
    found = _found(root, script, exclude)
    for name in found:
        check_path(name)
    _check_limit(root, found, limit_nbytes)
    return manifest_of([_entry(name, path) for name, path in found.items()], limit_nbytes)


def fill(store: Store, manifest: FileManifest, root: Path) -> None:
    """Copy the contents of `manifest`, which `collect` made from `root`, into `store`, as far as they are missing.

    Raises:
        FilesError: a file has changed since, or the store is full.
    """
    missing = store.missing(manifest)
    root = root.resolve()
    for entry in manifest.entries:
        if entry.sha256 in missing:
            missing.discard(entry.sha256)
            try:
                store.write(entry.sha256, entry.nbytes, _chunks(root / entry.path))
            except OSError as error:
                raise FilesError(f"cannot read {root / entry.path}: {error.strerror}") from None
            except FilesError as error:
                raise FilesError(f"{root / entry.path} has changed while it was read: start again ({error})") from None


def _found(root: Path, script: Path, exclude: Collection[Path]) -> Mapping[str, Path]:
    root = root.resolve()
    found = list_files(root, exclude)
    imported = {name: root / name for name in fingerprint(script, root)}
    return found | {name: path for name, path in imported.items() if name not in found and path.is_file()}


def _check_limit(root: Path, found: Mapping[str, Path], limit_nbytes: int) -> None:
    sizes = {name: path.stat().st_size for name, path in found.items()}
    if sum(sizes.values()) <= limit_nbytes and len(sizes) <= MAX_FILES:
        return
    many = len(sizes) > MAX_FILES
    weights: Counter[str] = Counter()
    for name, size in sizes.items():
        first, inner, _ = name.partition("/")
        weights[f"{first}/" if inner else name] += 1 if many else size
    words = [f"{name} ({_amount(weight, many)})" for name, weight in weights.most_common(_LARGEST)]
    what = f"{len(sizes)} files" if many else f"files of {_amount(sum(sizes.values()), False)}"
    limit = f"{MAX_FILES} files are allowed" if many else f"{_amount(limit_nbytes, False)} are allowed (--files-limit)"
    raise FilesError(
        f"{root} has {what}; at most {limit}, since each host gets a copy. The largest: {', '.join(words)}. Add what "
        "the script does not need to .gitignore, or keep it outside of this directory"
    )


def _amount(number: int, many: bool) -> str:
    return f"{number} files" if many else f"{number / _MIB:.1f} MiB"


def _entry(name: str, path: Path) -> FileEntry:
    digest, nbytes = hashlib.sha256(), 0
    try:
        for chunk in _chunks(path):
            digest.update(chunk)
            nbytes += len(chunk)
        executable = os.access(path, os.X_OK)
    except OSError as error:
        raise FilesError(f"cannot read {path}: {error.strerror}. Make it readable, or add it to .gitignore") from None
    return FileEntry(name, digest.hexdigest(), nbytes, executable)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_NBYTES):
            yield chunk
