"""A request to leave, such as SIGTERM before a machine is taken away, and when it may interrupt."""

from __future__ import annotations

from types import TracebackType


class Preempted(BaseException):
    """This worker was told to leave. Raised in the script, whose `finally` blocks then run; not an error."""


class Preemption:
    """At most one request to leave. In the script's own code it interrupts at once, by `Preempted`.

    Within ``with preemption:`` the request waits for `check`, or for the end of the block: what is done there is done
    whole. Every later use raises again, so a script that swallows the exception gets no further. Belongs to the main
    thread, where signal handlers run.
    """

    def __init__(self) -> None:
        self.requested = False
        self._accepted = False
        self._depth = 0

    def request(self) -> None:
        """Ask the worker to leave; may be called between any two instructions."""
        self.requested = True
        if self._depth == 0:
            self.check()

    def accept(self) -> None:
        """The worker leaves, or its script has ended: nothing is interrupted any more."""
        self._accepted = True

    def check(self) -> None:
        """A place at which the worker may be interrupted.

        Raises:
            Preempted: the worker was asked to leave.
        """
        if self.requested and not self._accepted:
            raise Preempted

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if kind is None and self._depth == 0:
            self.check()
