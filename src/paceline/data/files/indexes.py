"""Indexes of files without random access: made once by one process, complete or absent, and shared by all on a host."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.data.files.places import Files
from paceline.file_locks import locked

logger = logging.getLogger(__name__)

Index = Mapping[str, npt.NDArray[Any]]
"""The columns of an index by name."""
Progress = Callable[[int, int], None]
"""``f(done, total)`` in bytes."""

_LOCK_TIMEOUT_S = 3600.0
_SAY_S = 5.0
_FORMAT = 1


def quiet(done: int, total: int) -> None:
    """Show no progress."""


class Said:
    """Logs the progress of an index every few seconds."""

    def __init__(self, what: str, progress: Progress) -> None:
        self._what, self._progress = what, progress
        self._next = time.monotonic() + _SAY_S

    def __call__(self, done: int, total: int) -> None:
        """Take a progress of `done` of `total` bytes."""
        self._progress(done, total)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SAY_S
            logger.info("indexing %s: %.0f %% of %.1f GB", self._what, 100 * done / max(1, total), total / 1e9)


def index_of(
    files: Files,
    kind: str,
    build: Callable[[Progress], dict[str, npt.NDArray[Any]]],
    root: Path,
    progress: Progress = quiet,
) -> Index:
    """The index `kind` of `files`: read from the folder `root`, or built and kept there.

    `kind` names all arguments that the index depends on. Of several processes one builds; the others wait for it. A
    process that dies leaves no index. If the folder cannot be written, the index stays in memory.
    """
    key = blake2b(f"{_FORMAT} {kind}".encode(), digest_size=16)
    for file in files.files:
        key.update(f"\0{file.name}\0{os.path.realpath(file.path) if files.is_local else ''}".encode())
        key.update(f"\0{file.size}\0{file.tag}\0{file.changed_ns}".encode())
    home = root / key.hexdigest()
    if (found := _load(home)) is not None:
        return found
    what = files.files[0].name + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    with ExitStack() as stack:
        try:
            doing = f"indexing {what}"
            stack.enter_context(locked(home.with_suffix(".lock"), timeout_s=_LOCK_TIMEOUT_S, doing=doing))
        except OSError as error:
            logger.warning("the index of %s cannot be kept in %s: %s", what, root, error)
            return build(Said(what, progress))
        if (found := _load(home)) is not None:
            return found
        made = build(Said(what, progress))
        try:
            _store(home, made)
        except OSError as error:
            logger.warning("the index of %s cannot be kept in %s: %s", what, root, error.strerror or error)
            return made
    return _load(home) or made


def _load(home: Path) -> Index | None:
    try:
        return {
            path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(home.glob("*.npy"))
        } or None
    except (OSError, ValueError):  # damaged: it is made again
        return None


def _store(home: Path, made: Mapping[str, npt.NDArray[Any]]) -> None:
    fresh = home.with_name(f".{home.name}.{secrets.token_hex(4)}.part")
    try:
        fresh.mkdir(parents=True)
        for name, column in made.items():
            np.save(fresh / f"{name}.npy", column, allow_pickle=False)
        if home.exists():
            shutil.rmtree(home)
        fresh.rename(home)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
