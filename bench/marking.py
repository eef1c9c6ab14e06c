"""Records the start of each turn of a looping process (its marks), and decides when its loop ends."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

LEAST_TURNS = 4
MEETING_S = 60.0
PATIENCE_S = 10.0


def leave_gloo() -> NoReturn:
    """End a rank that has left its process group, without the interpreter's own clean-up.

    Threads of Gloo may outlive the group. A thread that needs the interpreter during its shutdown aborts the process
    ("terminate called without an active exception", pytorch/pytorch#179291). This is rare, and all marks are written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Marker:
    """Records the start of each turn. Ends the loop `seconds` after all `peers` have finished their `warmup` turns.

    Peers find each other by files in `out`. All use the monotonic clock of the machine, so marks of different processes
    can be compared.
    """

    def __init__(self, out: Path, name: str, *, warmup: int, seconds: float, peers: int = 1) -> None:
        self._out, self._name = out, name
        self._warmup, self._seconds, self._peers = warmup, seconds, peers
        self._marks: list[tuple[int, float]] = []
        self._all_warm: float | None = None

    def meet(self) -> None:
        """Wait until all peers have started.

        Raises:
            TimeoutError: a peer did not start in time.
        """
        deadline = time.monotonic() + MEETING_S
        self._tell("here")
        while not self._all("here"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {self._peers} processes had started after {MEETING_S:.0f} s")
            time.sleep(0.005)

    def mark(self, step: int) -> bool:
        """Record the start of a turn. Returns False if the loop should end."""
        now = time.perf_counter()
        self._marks.append((step, now))
        turns = len(self._marks) - 1 - self._warmup
        if turns < 0:
            return True
        if turns == 0:
            self._tell("warm")
        if self._all_warm is None and self._all("warm"):
            self._all_warm = now
        if turns < LEAST_TURNS:
            return True
        if self._all_warm is None:  # end in any case: a peer without work would never be warm
            return now - self._marks[self._warmup][1] < PATIENCE_S + 4 * self._seconds
        return now - self._all_warm < self._seconds

    def turns_in(self, seconds: float) -> int:
        """How many turns take `seconds`, estimated from the second half of the turns so far."""
        half = self._marks[len(self._marks) // 2 :]
        each = (half[-1][1] - half[0][1]) / (len(half) - 1)
        return max(LEAST_TURNS, round(seconds / each))

    def save(self) -> None:
        """Write the marks for `harness.read_marks`."""
        (self._out / f"{self._name}.marks.json").write_text(json.dumps(self._marks))

    def _tell(self, what: str) -> None:
        (self._out / f"{self._name}.{what}").touch()

    def _all(self, what: str) -> bool:
        return len(list(self._out.glob(f"*.{what}"))) >= self._peers
