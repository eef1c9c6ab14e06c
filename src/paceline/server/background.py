"""Threads of a server that work beside the training."""

from __future__ import annotations

import contextlib
import os
import threading

_NICE = 15  # hashing and writing, most of the work of these threads, do not hold the interpreter's lock


def yield_to_training() -> None:
    """Give the calling thread a lower priority than the training."""
    with contextlib.suppress(AttributeError, OSError):  # Linux has a priority for each thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)


class BackgroundThread(threading.Thread):
    """A thread that works on one version beside the training, and may be given up."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._given_up = False

    @property
    def given_up(self) -> bool:
        """Whether the version was given up, so that the result is ignored."""
        return self._given_up

    def give_up(self) -> None:
        """Stop as soon as possible."""
        self._given_up = True
