"""Raises an exception on SIGTERM, as Python does on Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises `Terminated` as long as the block lasts. Outside of the main thread it does nothing."""

    def stop(*_: object) -> None:
        raise Terminated

    with ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            undo.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, stop))
        yield
