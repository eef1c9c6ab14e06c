"""Tries the providers of a data set in order: a directory, the cache, the Debian directory, a download, the package."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from paceline.datasets.debian import DEBIAN_DIRECTORY, DEBIAN_PACKAGE, fetch_package
from paceline.datasets.download import DOWNLOAD_URL, download
from paceline.datasets.idx_files import Content, ProviderError, Release, Split, read_files
from paceline.errors import DatasetUnavailableError
from paceline.file_locks import locked

logger = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 600.0


def load(
    release: Release,
    split: Split | None,
    *,
    root: Path | None,
    cache: Path,
    offline: bool,
    debian: Path = DEBIAN_DIRECTORY,
    fetchers: Mapping[str, Callable[[Release, Path], None]] | None = None,
) -> tuple[Content, str]:
    """Return the verified content of the files of `split`, and a line that names the provider.

    `fetchers` maps a description to a function that puts the four files into an empty directory or raises
    `ProviderError`. They are tried in order, under a lock: one process fetches a release at a time.
    """
    wanted = release.files(split)
    if root is not None:
        try:
            return read_files(root, wanted), f"directory: {root}"
        except ProviderError as error:
            raise _unavailable(release, {f"directory {root}": str(error)}) from None

    tried: dict[str, str] = {}
    try:
        home = cache.expanduser() / release.name
    except RuntimeError as error:
        raise _unavailable(release, {f"cache {cache}": f"{error}; pass cache= a directory"}) from None
    for label, directory in (("cache", home), ("Debian package's directory", debian)):
        try:
            return read_files(directory, wanted), f"{label}: {directory}"
        except ProviderError as error:
            tried[f"{label} {directory}"] = str(error)

    if fetchers is None:
        fetchers = {f"download from {DOWNLOAD_URL}": download, f"apt-get download {DEBIAN_PACKAGE}": fetch_package}
    if offline:
        tried.update(dict.fromkeys(fetchers, "not tried: offline"))
        raise _unavailable(release, tried)
    try:
        with locked(home.with_suffix(".lock"), timeout_s=_LOCK_TIMEOUT_S):
            with contextlib.suppress(ProviderError):  # another process may have filled the cache meanwhile
                return read_files(home, wanted), f"cache: {home}"
            for label, fetch in fetchers.items():
                try:
                    content = _fetch_into(home, release, fetch)
                except ProviderError as error:
                    tried[label] = str(error)
                else:
                    return content, f"{label}, kept in {home}"
    except OSError as error:
        tried[f"writing to the cache {home}"] = str(error)
    raise _unavailable(release, tried)


def _unavailable(release: Release, tried: Mapping[str, str]) -> DatasetUnavailableError:
    reasons = "\n".join(f"  - {label}: {reason}" for label, reason in tried.items())
    names = ", ".join(file.name for file in release.files(None))
    return DatasetUnavailableError(
        f"{release.name} is not available from any provider:\n{reasons}\n"
        f"Remedy: put {names} into a directory and pass it as the first argument."
    )


def _fetch_into(home: Path, release: Release, fetch: Callable[[Release, Path], None]) -> Content:
    """Fetch into a fresh directory, verify all files, and rename it to `home`. The caller holds the lock."""
    prefix = f".{release.name}-"
    for leftover in home.parent.glob(f"{prefix}*"):  # left by a process that died while it fetched
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=prefix) as scratch:
        fresh = Path(scratch, "files")
        fresh.mkdir()
        fetch(release, fresh)
        content = read_files(fresh, release.files(None))
        if home.exists():
            home.rename(Path(scratch, "replaced"))
        fresh.rename(home)
    return content
