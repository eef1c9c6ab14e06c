"""SIGTERM for those who wait: it is raised where Ctrl-C would be."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


class Terminated(KeyboardInterrupt):
    """Told to end, by SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises `Terminated` as long as the block lasts. Outside of the main thread signals are not ours."""

    def stop(*_: object) -> None:
        raise Terminated

    with ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            undo.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, stop))
        yield
