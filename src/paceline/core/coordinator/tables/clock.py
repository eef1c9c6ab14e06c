"""The time that all machines of the coordinator read."""

from __future__ import annotations


class Clock:
    """The coordinator's running time at the event that is being handled. Only the dispatcher sets it."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def set(self, now: float) -> None:
        """Set the time to `now`, at which an event arrives."""
        self.now = now
