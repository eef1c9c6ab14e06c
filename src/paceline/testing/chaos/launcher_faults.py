"""Kill the launcher, alone or with every process of the run, and resume the run."""

from __future__ import annotations

import time

from paceline.testing.chaos.plan import Kind, Planned
from paceline.testing.chaos.recovery import Recovering
from paceline.testing.chaos.target import Target
from paceline.testing.chaos.watch import Seen

_GONE_S = 5.0  # seconds after the kill of a launcher within which all processes and memory of the run must be gone
_WHOLE = (
    0.2  # after this share of the kills the run may recover; after the others, the next launcher dies while it starts
)


class LauncherFaults:
    """Kills launchers and resumes the run. A resumed run may still be starting when `kill` returns: see `settle`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = target.run
        self._figures = target.figures
        self._starting: Recovering | None = None  # set while a resumed run has not recovered yet
        self._start_s: float | None = None  # seconds from the start of a launcher until the run has recovered

    @property
    def settled(self) -> bool:
        """Whether the run has recovered from every fault so far."""
        return self._starting is None

    def settle(self) -> None:
        """Wait until a resumed run has all its processes and copies and commits again.

        Raises:
            Stuck: the run does not get there in time.
        """
        if self._starting is not None:
            recovery, self._starting = self._starting, None
            self._start_s = self._target.wait(recovery).at - recovery.at

    def kill(self, planned: Planned) -> None:
        """Kill the launcher of a run that has recovered from all faults."""
        before = self._target.status()
        self._restart(planned, before)
        if planned.fault.kind == Kind.ALL or self._start_s is None or planned.span < _WHOLE:
            self.settle()

    def kill_starting(self, planned: Planned) -> bool:
        """Kill a launcher at a random time while it starts the run; False if the run is not starting."""
        starting, start_s = self._starting, self._start_s
        if planned.fault.kind != Kind.LAUNCHER or starting is None or start_s is None:
            return False
        due = starting.at + planned.draw * start_s
        while time.monotonic() < due:
            self._run.check()
            time.sleep(0.01)
        self._restart(planned, starting.before)
        if planned.span < _WHOLE:
            self.settle()
        return True

    def _restart(self, planned: Planned, before: Seen) -> None:
        """Kill the launcher, check that nothing of the run is left, and resume the run."""
        footprint = self._run.kill_launcher(everything=planned.fault.kind == Kind.ALL)
        self._figures.fire(planned.fault)
        gone_s, left = footprint.wait_gone(_GONE_S)
        self._figures.gone(gone_s)
        if left:
            self._figures.left(left, f"{_GONE_S:.0f} s after {planned.fault}")
        at = time.monotonic()
        self._run.resume()
        self._figures.count(resumes=1)
        self._starting = self._target.recovering(planned.fault, at, before)
