"""Requests of other threads to end a run. The thread of the supervisor gets them as exceptions, like Ctrl-C."""

from __future__ import annotations

import queue
import threading


class Stopped(KeyboardInterrupt):
    """Raised in the supervisor when the program that has launched the run ends it."""


class StopRequests:
    """The requests to end one run. Any thread may ask; only the thread of the supervisor calls `check`.

    As with signals, the first request ends the run with a last checkpoint, and a second one ends it at once.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[type[KeyboardInterrupt]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._asked = 0

    def ask(self, kind: type[KeyboardInterrupt] = Stopped, *, at_once: bool = False) -> None:
        """Let `check` raise `kind`: once, and with `at_once` a second time. What was asked before counts, too."""
        wanted = 2 if at_once else 1
        with self._lock:
            for _ in range(wanted - self._asked):
                self._waiting.put(kind)
            self._asked = max(wanted, self._asked)

    def check(self) -> None:
        """Raise the next request, if there is one; each is raised once."""
        try:
            kind = self._waiting.get_nowait()
        except queue.Empty:
            return
        raise kind
