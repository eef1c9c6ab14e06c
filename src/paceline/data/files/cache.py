"""A bounded cache of blocks of remote files on the local disk, shared by the processes of a host."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from paceline.file_locks import locked

logger = logging.getLogger(__name__)

BLOCK = 4 << 20
"""The bytes of a block."""
_LOCKS = 64
_LOCK_TIMEOUT_S = 120.0
_TOUCH_S = 60.0  # the time of the last use of a block is noted this exactly
_CRC = 4


class BlockCache:
    """Blocks of files by name. The blocks that were used last are kept, up to `limit` bytes on the disk.

    One process fetches a block, others that need it wait for it. A block that is damaged on the disk is fetched again.
    Without room on the disk, blocks are fetched and not kept. `hits` and `misses` count the reads of this process.
    """

    def __init__(self, root: Path, limit: int) -> None:
        self.root, self.limit = root, limit
        self.hits = self.misses = 0
        self._written = 0
        self._warned = False

    def read(self, name: str, number: int, nbytes: int, fetch: Callable[[], bytes]) -> bytes:
        """Return block `number`, of `nbytes` bytes, of the file `name` (a hex digest); ``fetch()`` gets it."""
        path = self.root / "blocks" / name[:2] / name / str(number)
        found = _load(path, nbytes)
        if found is not None:
            self.hits += 1
            return found
        with ExitStack() as stack:
            lock = self.root / "locks" / str(zlib.crc32(f"{name} {number}".encode()) % _LOCKS)
            with suppress(OSError):  # a time-out, or no room for the lock: fetch the block beside the other process
                stack.enter_context(locked(lock, timeout_s=_LOCK_TIMEOUT_S))
            found = _load(path, nbytes)
            if found is not None:
                self.hits += 1
                return found
            self.misses += 1
            content = fetch()
            self._keep(path, content)
        return content

    def has(self, name: str, number: int) -> bool:
        """Whether block `number` of the file `name` is on the disk."""
        return (self.root / "blocks" / name[:2] / name / str(number)).exists()

    def _keep(self, path: Path, content: bytes) -> None:
        try:
            try:
                _store(path, content)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self.evict(self.limit // 2)
                _store(path, content)
        except OSError as error:
            if not self._warned:
                logger.warning(
                    "the cache of data %s cannot be written (%s): data are fetched again each time. Make room, or name "
                    "another directory by PACELINE_CACHE",
                    self.root,
                    error.strerror or error,
                )
                self._warned = True
            return
        self._written += len(content)
        if self._written >= self.limit // 16:
            self._written = 0
            self.evict(self.limit)

    def evict(self, limit: int) -> None:
        """Remove the blocks that were not used for the longest time, until the others have at most `limit` bytes."""
        try:
            with locked(self.root / "locks" / "evict", timeout_s=0.0):
                _evict(self.root / "blocks", limit)
        except OSError:  # another process does it
            return


def _load(path: Path, nbytes: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read()
            used = os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    if len(content) != nbytes + _CRC or zlib.crc32(content[:-_CRC]).to_bytes(_CRC, "little") != content[-_CRC:]:
        path.unlink(missing_ok=True)
        return None
    if time.time() - used > _TOUCH_S:
        with suppress(OSError):
            os.utime(path)
    return content[:-_CRC]


def _store(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.write(zlib.crc32(content).to_bytes(_CRC, "little"))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _evict(root: Path, limit: int) -> None:
    found: list[tuple[float, int, Path]] = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            with suppress(OSError):
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        is_left_over = path.name.startswith(".") and time.time() - used > _LOCK_TIMEOUT_S
        if total <= limit and not is_left_over:
            continue
        with suppress(OSError):
            path.unlink()
            total -= size


class ReadAhead:
    """Reads one block in the background, at most one at a time. An error is dropped: the reader meets it itself."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self, read: Callable[[], object]) -> None:
        """Call ``read()`` in a thread that ends with it, unless one is busy."""
        if self._pid != os.getpid():
            self._thread, self._pid = None, os.getpid()
        if self._thread is not None and self._thread.is_alive():
            return

        def work() -> None:
            with suppress(Exception):
                read()

        self._thread = threading.Thread(target=work, name="paceline-read-ahead", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(timeout_s)
