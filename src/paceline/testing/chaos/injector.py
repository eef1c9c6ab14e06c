"""Injects the planned faults into one run, one after the other."""

from __future__ import annotations

import time

import psutil

from paceline.testing.chaos.figures import Figures
from paceline.testing.chaos.launcher_faults import LauncherFaults
from paceline.testing.chaos.network_faults import NetworkFaults
from paceline.testing.chaos.plan import Kind, Planned
from paceline.testing.chaos.process_faults import ProcessFaults
from paceline.testing.chaos.run import ChaosRun, Stuck
from paceline.testing.chaos.shape_faults import ShapeFaults
from paceline.testing.chaos.storm_faults import StormFaults
from paceline.testing.chaos.stranger_faults import StrangerFaults
from paceline.testing.chaos.target import Target

_AGAIN = 0.25  # this share of the kills of servers does not wait for a new checkpoint since the last rewind


class Injector:
    """Injects faults into one run, and records in the figures how the run recovers."""

    def __init__(self, run: ChaosRun, figures: Figures) -> None:
        self.run = run
        self.figures = figures
        target = Target(run, figures)
        self._processes = ProcessFaults(target)
        self._shape = ShapeFaults(target)
        self._network = NetworkFaults(target)
        self._strangers = StrangerFaults(target)
        self._launcher = LauncherFaults(target)
        self._storm = StormFaults(target)
        self._from: str | None = None  # the checkpoint from which the last rewind or resume began

    @property
    def settled(self) -> bool:
        """Whether the run has recovered from every fault so far."""
        return self._launcher.settled and self._storm.settled

    def settle(self) -> None:
        """Wait until a run that was resumed or in a storm has all its processes and copies and commits again.

        Raises:
            Stuck: the run does not get there in time.
        """
        self._launcher.settle()
        self._storm.settle()

    def do(self, planned: Planned) -> bool:
        """Inject one fault and, except in a storm, wait until the run has recovered.

        Returns False if the fault must be tried again.

        Raises:
            Ended: the script came to its end before the fault.
            Stuck: the run did not recover.
        """
        try:
            if self._launcher.kill_starting(planned):
                return True
            if planned.fault.kind == Kind.STORM:
                self._storm.kill(planned)
                return True
            self.settle()
            self._wait_for_progress(planned)
            time.sleep(planned.pause_s)
            return self._inject(planned)
        except psutil.NoSuchProcess as error:
            self.run.check()
            raise Stuck(f"{planned.fault}: process {error.pid} ended before the fault could be injected") from None

    def _wait_for_progress(self, planned: Planned) -> None:
        """Before a fault that rewinds, wait for a new checkpoint, so that the run makes progress between faults."""
        fault = planned.fault
        rewinds = fault.role == "server" and not self.run.spec.replicas and planned.span > _AGAIN
        if fault.kind in (Kind.SAVING, Kind.ALL, Kind.LAUNCHER) or rewinds:
            seen = self.run.until(lambda seen: seen.checkpoint not in (None, self._from), "a new complete checkpoint")
            self._from = seen.checkpoint

    def _inject(self, planned: Planned) -> bool:
        match planned.fault.kind:
            case Kind.KILL:
                self._processes.kill(planned)
            case Kind.SAVING:
                return self._processes.kill_while_saving(planned)
            case Kind.STOP:
                self._processes.stop(planned)
            case Kind.TERM:
                self._processes.terminate(planned)
            case Kind.JOIN:
                self._shape.join(planned)
            case Kind.ADD | Kind.DRAIN:
                self._shape.scale(planned)
            case Kind.SET:
                self._shape.set_mode(planned)
            case Kind.CUT:
                self._network.cut(planned)
            case Kind.STRANGERS:
                self._strangers.besiege(planned)
            case Kind.ALL | Kind.LAUNCHER:
                self._launcher.kill(planned)
        return True
