"""A notice to leave, such as SIGTERM before a machine is taken away, and when it may interrupt."""

from __future__ import annotations

from types import TracebackType


class Preempted(BaseException):
    """This worker was told to leave. Raised in the script, whose `finally` blocks then run; not an error."""


class Notice:
    """At most one notice. In the script's own code it interrupts at once, by `Preempted`.

    Within ``with notice:`` something is half done: the notice waits for `check`, or for the end of the block. Every
    later use raises again, so a script that swallows the exception gets no further. Belongs to the main thread, where
    signal handlers run.
    """

    def __init__(self) -> None:
        self.given = False
        self._accepted = False
        self._depth = 0

    def give(self) -> None:
        """The notice arrives, between any two instructions."""
        self.given = True
        if self._depth == 0:
            self.check()

    def accept(self) -> None:
        """The worker is leaving, or has nothing left to do: nothing is interrupted any more."""
        self._accepted = True

    def check(self) -> None:
        """Nothing is half done here.

        Raises:
            Preempted: a notice was given.
        """
        if self.given and not self._accepted:
            raise Preempted

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if kind is None and self._depth == 0:
            self.check()
