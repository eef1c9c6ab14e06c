"""Wakes a port that waits in `recv`: another thread has something for the thread of the port."""

from __future__ import annotations

import os

from paceline.transport.loop import Loop, Source


class Waker:
    """Only `wake` may be called by other threads."""

    def __init__(self, loop: Loop) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False
        self._loop = loop
        self._source = Source(self._fd, self._read)
        loop.watch((self._source,))

    def wake(self) -> None:
        """Let the present or the next `recv` return. Does nothing once the port is closed."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def take(self) -> bool:
        """Whether `wake` was called since the last `take`."""
        woken, self._woken = self._woken, False
        return woken

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            self._loop.unwatch((self._source,))
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bool:
        try:
            os.eventfd_read(self._fd)
            self._woken = True
        except BlockingIOError:
            pass
        return False
