"""What a looping process keeps of its own run, and when its time is up."""

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

    Threads of Gloo may outlive the group, and one that needs the interpreter while it is being taken down aborts the
    process ("terminate called without an active exception", pytorch/pytorch#179291): seldom, and when all is measured.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Marker:
    """Notes when each turn of a loop began, and ends it `seconds` after all `peers` have done their `warmup` turns.

    Peers know of each other by files in `out`. The clock is the machine's monotonic one: marks of different processes
    compare.
    """

    def __init__(self, out: Path, name: str, *, warmup: int, seconds: float, peers: int = 1) -> None:
        self._out, self._name = out, name
        self._warmup, self._seconds, self._peers = warmup, seconds, peers
        self._marks: list[tuple[int, float]] = []
        self._all_warm: float | None = None

    def meet(self) -> None:
        """Wait until all peers are here: starting up takes them more or less long.

        Raises:
            TimeoutError: somebody did not come.
        """
        deadline = time.monotonic() + MEETING_S
        self._tell("here")
        while not self._all("here"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {self._peers} processes were here after {MEETING_S:.0f} s")
            time.sleep(0.005)

    def mark(self, step: int) -> bool:
        """A turn begins; False when the loop should end instead."""
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
        if self._all_warm is None:  # a peer that gets nothing to do is a finding, and no reason to hang
            return now - self._marks[self._warmup][1] < PATIENCE_S + 4 * self._seconds
        return now - self._all_warm < self._seconds

    def turns_in(self, seconds: float) -> int:
        """How many turns will take `seconds`, going by the later half of those so far."""
        half = self._marks[len(self._marks) // 2 :]
        each = (half[-1][1] - half[0][1]) / (len(half) - 1)
        return max(LEAST_TURNS, round(seconds / each))

    def save(self) -> None:
        """Leave the marks where `harness.read_marks` looks."""
        (self._out / f"{self._name}.marks.json").write_text(json.dumps(self._marks))

    def _tell(self, what: str) -> None:
        (self._out / f"{self._name}.{what}").touch()

    def _all(self, what: str) -> bool:
        return len(list(self._out.glob(f"*.{what}"))) >= self._peers
