"""The run that faults are injected into: choose a victim, send a signal, wait for the recovery."""

from __future__ import annotations

import time

import psutil

from paceline.testing.chaos.figures import Figures
from paceline.testing.chaos.plan import Fault, Planned
from paceline.testing.chaos.recovery import Recovering
from paceline.testing.chaos.run import ChaosRun
from paceline.testing.chaos.watch import Process, Seen

_SLOW_S = 5.0  # seconds: the figures list each recovery that took longer, and what it waited for


class Target:
    """One run and the figures of its campaign."""

    def __init__(self, run: ChaosRun, figures: Figures) -> None:
        self.run = run
        self.figures = figures

    def status(self) -> Seen:
        """The next status."""
        return self.run.until(lambda seen: True, "a status")

    def choose(self, planned: Planned) -> tuple[Seen, Process, psutil.Process]:
        """The newest status, and a victim of the fault's role. Only processes of the run are ever chosen."""
        found: list[tuple[Process, psutil.Process]] = []

        def some(seen: Seen) -> bool:
            ours = {p.pid: p for p in self.run.family()}
            found[:] = [(p, ours[p.pid]) for p in seen.of_role(planned.fault.role) if p.pid in ours]
            return bool(found)

        seen = self.run.until(some, f"a {planned.fault.role} among the processes of the run")
        victim, process = found[int(planned.draw * len(found))]
        return seen, victim, process

    def recovering(
        self,
        fault: Fault,
        at: float,
        before: Seen,
        victim: Process | None = None,
        *,
        returns: bool = True,
        fewer: int = 0,
        new: bool = False,
    ) -> Recovering:
        """Begin to follow a recovery. The run must reach its wanted size again, less `fewer` workers."""
        run = self.run
        replicas = run.spec.replicas if victim is not None else 0
        return Recovering(fault, at, before, victim, run.workers - fewer, run.servers, returns, replicas, new)

    def wait(self, recovery: Recovering) -> Seen:
        """Wait until the run has recovered, and add the time to the figures.

        Raises:
            Stuck: the run does not recover.
        """
        seen = self.run.until_recovered(recovery)
        took_s = seen.at - recovery.at
        self.figures.measured(recovery.fault.measured_as, recovery.committed_s, took_s)
        if took_s > _SLOW_S:
            what, missing = f"{recovery.fault} at version {recovery.before.version}", " and ".join(recovery.missing)
            self.figures.add_slow(f"{what}: {took_s:.1f} s, last waited for {missing}")
        return seen

    def replace_worker(self) -> None:
        """Start another worker by `paceline join`, in place of a worker that left and is not started again."""
        self.run.join()
        self.run.until_whole()
        self.run.forget_ended_joiners()


def send(process: psutil.Process, number: int) -> float:
    """Send a signal; returns the time at which it was sent."""
    at = time.monotonic()
    process.send_signal(number)
    return at
