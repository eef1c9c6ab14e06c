"""Faults of one process: a kill, a kill during a checkpoint, a stop for longer than its lease, a SIGTERM."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from paceline.checkpoint.manifest import MARKER, newest
from paceline.checkpoint.storage import open_storage
from paceline.testing.chaos.plan import Fault, Kind, Planned
from paceline.testing.chaos.recovery import Recovering
from paceline.testing.chaos.run import Stuck
from paceline.testing.chaos.target import Target, send
from paceline.testing.chaos.watch import Process, Seen
from paceline.testing.launch import lives

_SAVE_SPAN_S = 0.01  # seconds: a kill comes at most this long after the first file of a checkpoint appears
_MAX_MISSES = 4  # so many kills in a row may come too late, when their checkpoint is complete
_SETTLE_S = 0.3  # seconds after a stop within which the coordinator would wrongly evict other processes


class ProcessFaults:
    """Sends signals to processes of one run, and waits until the run has recovered."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run = target.run
        self._figures = target.figures
        self._misses = 0

    def kill(self, planned: Planned) -> None:
        """Send SIGKILL to a process. A worker that joined by `paceline join` is not started again."""
        before, victim, process = self._target.choose(planned)
        returns = not self._run.is_joined(process)
        self._killed(planned.fault, send(process, signal.SIGKILL), before, victim, returns=returns)

    def _killed(self, fault: Fault, at: float, before: Seen, victim: Process, *, returns: bool = True) -> None:
        self._figures.fire(fault)
        self._target.wait(self._target.recovering(fault, at, before, victim, returns=returns, fewer=int(not returns)))
        if not returns:
            self._target.replace_worker()

    def kill_while_saving(self, planned: Planned) -> bool:
        """Send SIGKILL while a checkpoint is written; False if the checkpoint was complete before the kill.

        Raises:
            Stuck: the kill came too late several times in a row, or the run does not recover.
        """
        before, victim, process = self._target.choose(planned)
        folder = self._wait_for_save()
        time.sleep(planned.span * _SAVE_SPAN_S)
        at = send(process, signal.SIGKILL)
        while lives(process):
            time.sleep(0.001)
        hit = not (folder / MARKER).exists()
        whole, _ = newest(open_storage(self._run.checkpoints))
        self._figures.count(checkpoints_checked=1, checkpoints_unloadable=int(whole is None))
        self._killed(planned.fault if hit else Fault(Kind.KILL, victim.role), at, before, victim)
        self._misses = 0 if hit else self._misses + 1
        self._figures.count(missed_saves=int(not hit))
        if self._misses > _MAX_MISSES:
            raise Stuck(f"{self._misses} times in a row a checkpoint was complete before the kill came")
        return hit

    def _wait_for_save(self) -> Path:
        """Wait until a checkpoint has its first file; returns its folder."""
        root = self._run.checkpoints
        old = {p.name for p in root.iterdir()}
        deadline = time.monotonic() + self._run.spec.deadline_s
        while time.monotonic() < deadline:
            for folder in root.iterdir():
                if folder.name not in old and any(folder.iterdir()) and not (folder / MARKER).exists():
                    return folder
            self._run.check()
            time.sleep(0.001)
        raise Stuck(f"no checkpoint was begun in {root}; logs are in {self._run.dir.logs}")

    def stop(self, planned: Planned) -> None:
        """Stop a process by SIGSTOP for longer than a lease, then continue it by SIGCONT."""
        fault, run = planned.fault, self._run
        before, victim, process = self._target.choose(planned)
        at = send(process, signal.SIGSTOP)
        self._figures.fire(fault)
        wake = at + run.spec.lease_s * (1.25 + 0.75 * planned.span)
        others = Recovering(fault, at, before, victim, 0, 0)
        if (fault.role == "worker" and run.workers > 1) or (fault.role == "server" and run.spec.replicas):
            self._wait_for_others(others, victim.name, wake)
        else:
            time.sleep(max(0.0, wake - time.monotonic()))
        woken = send(process, signal.SIGCONT)
        after = Recovering(fault, woken, before, victim, run.workers, run.servers)
        seen = run.until_recovered(after)
        recovery_s = after.committed_s if others.committed_s is None else others.committed_s
        self._figures.measured(fault.measured_as, recovery_s, seen.at - woken)
        if fault.role == "coordinator":
            self._check_not_evicted(before)

    def _wait_for_others(self, others: Recovering, stopped: str, wake: float) -> None:
        """Wait for a commit without the stopped process, and until it is time to wake it."""

        def done(seen: Seen) -> bool:
            others.see(seen)
            return others.committed_s is not None and seen.at > wake

        self._run.until(done, f"a commit while {stopped} is stopped")

    def _check_not_evicted(self, before: Seen) -> None:
        """Check that a coordinator which was stopped did not evict others for its own pause."""
        time.sleep(_SETTLE_S)
        after = self._target.status()
        if after.generation == before.generation:
            self._figures.count(needless_evictions=max(0, after.lost_workers - before.lost_workers))
        else:
            self._figures.fail(f"the coordinator was stopped, and generation {after.generation} took over")

    def terminate(self, planned: Planned) -> None:
        """Send SIGTERM to a worker: it leaves properly and must not count as lost."""
        before, victim, process = self._target.choose(planned)
        at = send(process, signal.SIGTERM)
        self._figures.fire(planned.fault)
        run = self._run
        after = self._target.wait(Recovering(planned.fault, at, before, victim, run.workers - 1, run.servers))
        if after.generation == before.generation and after.lost_workers > before.lost_workers:
            self._figures.fail(f"{victim.name} got SIGTERM and left, but the job counts it as lost")
        self._target.replace_worker()
