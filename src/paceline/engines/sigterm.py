"""SIGTERM as an exception, as Python treats Ctrl-C; or both signals as notices that are counted."""

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


class Notices:
    """A context manager: counts each SIGTERM and Ctrl-C that this process gets during the block."""

    def __init__(self) -> None:
        self.count = 0
        self._undo = ExitStack()

    def __enter__(self) -> Notices:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._undo.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _note(self, *_: object) -> None:
        self.count += 1
