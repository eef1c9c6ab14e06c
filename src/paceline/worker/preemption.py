"""SIGTERM is a preemption notice: the worker hands its slot back and leaves. The machine may be taken away soon.

1. `heed_sigterm` installs the signal handler, which calls `Preemption.request`.
2. The script's own code is interrupted at once, by the exception `Preempted`. A call into Paceline is interrupted only
   where `Preemption` allows it, so gradients and the report of a slot are sent together or not at all.
3. `Session.leave` (`session.py`) then waits until sealed gradients have arrived and says `Bye`, by which the
   coordinator gets back the slot that was not sealed. Another worker computes that slot.
"""

from __future__ import annotations

import os
import signal
from types import TracebackType


class Preempted(BaseException):
    """The worker was asked to leave. Raised in the script, whose `finally` blocks then run; not an error."""


class Preemption:
    """At most one request to leave, and when it may interrupt. Used by the main thread only: signal handlers run there.

    In the script's own code the request raises `Preempted` at once. Within ``with preemption:`` it raises only in
    `check` or at the end of the block, so the steps between them all happen. Every later use raises again: a script
    that catches the exception cannot continue with the job.
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
        """Interrupt nothing from now on: the worker leaves already, or its script has ended."""
        self._accepted = True

    def check(self) -> None:
        """Interrupt here if the worker was asked to leave.

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


def heed_sigterm(preemption: Preemption, exit_code: int) -> None:
    """Make SIGTERM a request to leave. A second SIGTERM ends this process at once, with `exit_code`."""
    owner = os.getpid()

    def on_sigterm(number: int, _: object) -> None:
        if os.getpid() != owner:  # a child process that the script forked (a data loader's, say): SIGTERM ends it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif preemption.requested:
            os._exit(exit_code)
        else:
            preemption.request()

    signal.signal(signal.SIGTERM, on_sigterm)
