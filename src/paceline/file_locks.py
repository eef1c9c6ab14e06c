"""Locks among the processes of a host, by files."""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, *, timeout_s: float, doing: str = "fetching the data") -> Iterator[None]:
    """Hold an exclusive lock on `path` among processes and threads. If the holder dies, the system releases the lock.

    Raises:
        TimeoutError: another process has held the lock for `timeout_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with path.open("a") as handle:
        logged = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process has held the lock {path} for {timeout_s:.0f} s") from None
            if not logged:
                logger.info("another process is %s; waiting for %s", doing, path)
                logged = True
            time.sleep(0.05)
        yield
