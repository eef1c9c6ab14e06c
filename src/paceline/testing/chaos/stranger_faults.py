"""Strangers at the ports of a run: they hold as much of its memory as they can, and the run must go on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import psutil

from paceline.testing.chaos.plan import Planned
from paceline.testing.chaos.run import Stuck
from paceline.testing.chaos.target import Target
from paceline.testing.launch import listening
from paceline.testing.strangers import Strangers

STRANGERS = 100
"""How many strangers connect at once, in turn to each port of the run."""

_LOOK_S = 0.05
_HELD_S = 2.0  # seconds for which the strangers stay; a port closes them after its `handshake_s`


class StrangerFaults:
    """Connects strangers to all ports of one run, and measures what they cost."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = target.run
        self._figures = target.figures

    def besiege(self, planned: Planned) -> None:
        """Let strangers send as many bytes as the ports take, while the run goes on."""
        before = self._target.status()
        at = time.monotonic()
        recovery = self._target.recovering(planned.fault, at, before)
        family = self._run.family()
        usual = _resident(family)
        most = usual
        try:
            with Strangers(sorted(listening(family)), STRANGERS) as strangers:
                self._figures.fire(planned.fault)
                while time.monotonic() < at + _HELD_S:
                    strangers.pour(_LOOK_S)
                    most = max(most, _resident(family))
                    if (seen := self._run.look()) is not None:
                        recovery.see(seen)
        except OSError as error:
            raise Stuck(f"strangers cannot connect to the ports of the run: {error}") from None
        self._figures.grown(most - usual)
        self._target.wait(recovery)
        self._figures.paused(str(planned.fault), recovery.pause_s)


def _resident(processes: Iterable[psutil.Process]) -> int:
    """The resident memory of the processes that still run, in bytes."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total
