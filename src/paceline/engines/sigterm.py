"""Raises an exception on SIGTERM, as Python does on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


class Terminated(KeyboardInterrupt):
    """Raised when the process gets SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` during the block. Does nothing if it is not called in the main thread."""

    def stop(*_: object) -> None:
        raise Terminated

    with ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            undo.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, stop))
        yield
