"""How each kind of fault is done to a run, and what is awaited after it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil

from paceline.checkpoint.manifest import MARKER, newest
from paceline.checkpoint.storage import open_storage
from paceline.errors import TransportError
from paceline.testing.chaos.cuts import Cut, choose
from paceline.testing.chaos.figures import Figures
from paceline.testing.chaos.launch import lives
from paceline.testing.chaos.plan import Fault, Kind, Planned
from paceline.testing.chaos.recovery import Recovering
from paceline.testing.chaos.run import ChaosRun, Stuck
from paceline.testing.chaos.watch import Process, Seen

_GONE_S = 5.0  # a killed launcher leaves nothing for longer than this
_MAX_EXTRA = 2  # joined workers beyond the run's own; then the oldest leaves
_SAVE_SPAN_S = 0.01  # how far into the writing of a checkpoint a kill may come
_MAX_MISSES = 4  # kills in a row that came too late for the checkpoint they were meant for
_AGAIN = 0.25  # share of the lost servers that may be lost again before anything was saved
_SLOW_S = 5.0  # after which it is worth knowing what a recovery waited for
_LOOK_S = 0.02  # between two looks while something lasts
_SETTLE_S = 0.3  # in which a coordinator that woke up would take others for lost
_WHOLE = 0.2  # share of the killed launchers after which the run is awaited whole; the others' successors die starting


class Strikes:
    """Does faults to one run and enters into the figures how it went."""

    def __init__(self, run: ChaosRun, figures: Figures) -> None:
        self.run = run
        self.figures = figures
        self._misses = 0
        self._from: str | None = None  # the checkpoint to which a fault sent the run back
        self._starting: Recovering | None = None  # from a killed launcher, by a run that nobody has awaited yet
        self._start_s: float | None = None  # how long such a run takes to be whole

    def do(self, planned: Planned) -> bool:
        """Inflict one fault and wait until the run has recovered; False if it came too late and must be done again.

        Raises:
            Ended: the script came to its end before the fault.
            Stuck: the run did not recover.
        """
        try:
            if planned.fault.kind == Kind.LAUNCHER and self._starting is not None and self._start_s is not None:
                self._kill_starting(planned, self._starting, self._start_s)
                return True
            self.settle()
            self._advance(planned)
            time.sleep(planned.pause_s)
            return self._do(planned)
        except psutil.NoSuchProcess as error:
            self.run.check()
            raise Stuck(f"{planned.fault}: process {error.pid} ended before its time") from None

    def _advance(self, planned: Planned) -> None:
        """A fault that sends the run back mostly waits for a checkpoint since the last one that did: no standstill."""
        fault = planned.fault
        rewinds = fault.role == "server" and not self.run.spec.replicas and planned.span > _AGAIN
        if fault.kind in (Kind.SAVING, Kind.ALL, Kind.LAUNCHER) or rewinds:
            seen = self.run.until(lambda seen: seen.checkpoint not in (None, self._from), "a new complete checkpoint")
            self._from = seen.checkpoint

    def _do(self, planned: Planned) -> bool:
        match planned.fault.kind:
            case Kind.KILL:
                self._kill(planned)
            case Kind.SAVING:
                return self._kill_saving(planned)
            case Kind.STOP:
                self._stop(planned)
            case Kind.TERM:
                self._term(planned)
            case Kind.JOIN:
                self._join(planned)
            case Kind.ALL | Kind.LAUNCHER:
                self._kill_launcher(planned)
            case Kind.CUT:
                self._cut(planned)
            case Kind.ADD | Kind.DRAIN:
                self._scale(planned)
        return True

    # ------------------------------------------------------------ kinds

    def _kill(self, planned: Planned) -> None:
        before, victim, process = self._choose(planned)
        returns = not self.run.is_joined(process)
        self._killed(planned.fault, _send(process, signal.SIGKILL), before, victim, returns=returns)

    def _killed(self, fault: Fault, at: float, before: Seen, victim: Process, *, returns: bool = True) -> None:
        self.figures.fired[str(fault)] += 1
        workers = self.run.workers - (not returns)
        self._await(Recovering(fault, at, before, victim, workers, self.run.servers, returns, self.run.spec.replicas))
        if not returns:
            self._replace()

    def _kill_saving(self, planned: Planned) -> bool:
        before, victim, process = self._choose(planned)
        folder = self._wait_for_save()
        time.sleep(planned.span * _SAVE_SPAN_S)
        at = _send(process, signal.SIGKILL)
        while lives(process):
            time.sleep(0.001)
        hit = not (folder / MARKER).exists()
        whole, _ = newest(open_storage(self.run.checkpoints))
        self.figures.checkpoints_checked += 1
        self.figures.checkpoints_unloadable += whole is None
        self._killed(planned.fault if hit else Fault(Kind.KILL, victim.role), at, before, victim)
        self.figures.missed_saves += not hit
        self._misses = 0 if hit else self._misses + 1
        if self._misses > _MAX_MISSES:
            raise Stuck(f"{self._misses} times in a row a checkpoint was complete before the kill came")
        return hit

    def _wait_for_save(self) -> Path:
        """The folder of a checkpoint whose writing has just begun."""
        root = self.run.checkpoints
        old = {p.name for p in root.iterdir()}
        deadline = time.monotonic() + self.run.spec.deadline_s
        while time.monotonic() < deadline:
            for folder in root.iterdir():
                if folder.name not in old and any(folder.iterdir()) and not (folder / MARKER).exists():
                    return folder
            self.run.check()
            time.sleep(0.001)
        raise Stuck(f"no checkpoint was begun in {root}; logs are in {self.run.dir.logs}")

    def _stop(self, planned: Planned) -> None:
        fault, run = planned.fault, self.run
        before, victim, process = self._choose(planned)
        at = _send(process, signal.SIGSTOP)
        self.figures.fired[str(fault)] += 1
        wake = at + run.spec.lease_s * (1.25 + 0.75 * planned.span)
        others = Recovering(fault, at, before, victim, 0, 0)
        if (fault.role == "worker" and run.workers > 1) or (fault.role == "server" and run.spec.replicas):
            self._others_go_on(others, victim.name, wake)
        else:
            time.sleep(max(0.0, wake - time.monotonic()))
        woken = _send(process, signal.SIGCONT)
        after = Recovering(fault, woken, before, victim, run.workers, run.servers)
        seen = run.until_recovered(after)
        recovery_s = after.committed_s if others.committed_s is None else others.committed_s
        self.figures.measured(fault.measured_as, recovery_s, seen.at - woken)
        if fault.role == "coordinator":
            self._check_not_evicted(before)

    def _others_go_on(self, others: Recovering, stopped: str, wake: float) -> None:
        """Wait for a commit without the stopped worker, and until it is time to wake it."""

        def done(seen: Seen) -> bool:
            others.see(seen)
            return others.committed_s is not None and seen.at > wake

        self.run.until(done, f"a commit while {stopped} is stopped")

    def _check_not_evicted(self, before: Seen) -> None:
        """A coordinator that was stopped must not hold that against the others."""
        time.sleep(_SETTLE_S)
        after = self.run.until(lambda seen: True, "a status")
        if after.generation == before.generation:
            self.figures.needless_evictions += max(0, after.lost_workers - before.lost_workers)
        else:
            self.figures.failures.append(f"the coordinator was stopped, and generation {after.generation} took over")

    def _term(self, planned: Planned) -> None:
        before, victim, process = self._choose(planned)
        at = _send(process, signal.SIGTERM)
        self.figures.fired[str(planned.fault)] += 1
        recovery = Recovering(planned.fault, at, before, victim, self.run.workers - 1, self.run.servers)
        after = self._await(recovery)
        if after.generation == before.generation and after.lost_workers > before.lost_workers:
            self.figures.failures.append(f"{victim.name} was told to leave, and counts as lost")
        self._replace()

    def _join(self, planned: Planned) -> None:
        before = self.run.until(lambda seen: True, "a status")
        at = time.monotonic()
        self.run.workers += 1
        self.run.join()
        self.figures.fired[str(planned.fault)] += 1
        self._await(Recovering(planned.fault, at, before, None, self.run.workers, self.run.servers))
        if len(self.run.joiners) > _MAX_EXTRA and self.run.workers > self.run.spec.workers:
            self._dismiss()

    def _dismiss(self) -> None:
        """The oldest joined worker leaves, as by Ctrl-C in its terminal."""
        joiner = self.run.joiners.pop(0)
        self.run.workers -= 1
        joiner.process.send_signal(signal.SIGINT)
        if joiner.wait(self.run.spec.deadline_s) is None:
            joiner.end()
            raise Stuck(f"`paceline join` does not end by Ctrl-C; see {joiner.out}")
        self.figures.fired["leave worker"] += 1
        self.run.until_whole()

    def _scale(self, planned: Planned) -> None:
        """One server more, or one fewer: blocks move while the run goes on."""
        adds = planned.fault.kind == Kind.ADD
        before = self.run.until(lambda seen: True, "a status")
        self.run.servers += 1 if adds else -1
        at = time.monotonic()
        try:
            self.run.watch.scale(self.run.servers)
        except TransportError as error:
            raise Stuck(f"the run does not take {self.run.servers} servers: {error}") from None
        self.figures.fired[str(planned.fault)] += 1
        recovery = Recovering(planned.fault, at, before, None, self.run.workers, self.run.servers, new=adds)
        self._await(recovery)
        self.figures.paused(str(planned.fault), recovery.pause_s)

    def _cut(self, planned: Planned) -> None:
        """Cut the network for a while; how long the run takes to be whole counts from the end of the cut."""
        network = self.run.network
        assert network is not None
        before = self.run.until(lambda seen: True, "a status")
        cut = self._choose_cut(planned, before)
        self.run.screen.note(f"{cut} at version {before.version}")
        self.figures.fired[str(planned.fault)] += 1
        at = time.monotonic()
        during = Recovering(planned.fault, at, before, None, 0, 0)
        try:
            for lasts_s, ways in cut.phases:
                network.close_ways(ways)
                at += lasts_s
                self._watch_until(at, during)
        finally:
            network.close_ways(())
        self.figures.paused(str(planned.fault), during.pause_s)
        seen = self.run.until(lambda seen: True, "a status")
        after = Recovering(planned.fault, time.monotonic(), seen, None, self.run.workers, self.run.servers)
        self._await(after)

    def _watch_until(self, at: float, recovery: Recovering) -> None:
        while time.monotonic() < at:
            if (seen := self.run.look()) is not None:
                recovery.see(seen)
            time.sleep(_LOOK_S)

    def _choose_cut(self, planned: Planned, seen: Seen) -> Cut:
        servers = [p.name for p in seen.of_role("server")]
        workers = [p.name for p in seen.of_role("worker") if not p.name.startswith("worker-j")]
        return choose(planned.fault.role, planned.draw, planned.span, servers, workers)

    def _replace(self) -> None:
        """A worker left for good: another one joins from outside."""
        self.run.join()
        self.run.until_whole()
        self.run.joiners = [joiner for joiner in self.run.joiners if joiner.code is None]

    @property
    def settled(self) -> bool:
        """Whether the run has recovered from every fault so far."""
        return self._starting is None

    def settle(self) -> None:
        """Wait for a run that was started again.

        Raises:
            Stuck: it does not become whole.
        """
        if self._starting is not None:
            recovery, self._starting = self._starting, None
            self._start_s = self._await(recovery).at - recovery.at

    def _kill_launcher(self, planned: Planned) -> None:
        before = self.run.until(lambda seen: True, "a status")
        self._start_again(planned, before)
        if planned.fault.kind == Kind.ALL or self._start_s is None or planned.span < _WHOLE:
            self.settle()

    def _kill_starting(self, planned: Planned, starting: Recovering, start_s: float) -> None:
        """Kill the launcher at any instant between its start and a whole run."""
        due = starting.at + planned.draw * start_s
        while time.monotonic() < due:
            self.run.check()
            time.sleep(0.01)
        self._start_again(planned, starting.before)
        if planned.span < _WHOLE:
            self.settle()

    def _start_again(self, planned: Planned, before: Seen) -> None:
        """Kill the launcher, look whether anything is left, and resume."""
        footprint = self.run.kill_launcher(everything=planned.fault.kind == Kind.ALL)
        self.figures.fired[str(planned.fault)] += 1
        gone_s, left = footprint.wait_gone(_GONE_S)
        self.figures.gone_s.append(gone_s)
        if left:
            self.figures.leftovers += len(left)
            self.figures.failures.append(f"{_GONE_S:.0f} s after {planned.fault} there is still: {', '.join(left)}")
        at = time.monotonic()
        self.run.resume()
        self.figures.resumes += 1
        self._starting = Recovering(planned.fault, at, before, None, self.run.workers, self.run.servers)

    # ------------------------------------------------------------ shared

    def _choose(self, planned: Planned) -> tuple[Seen, Process, psutil.Process]:
        """The state now, and a victim of the right role."""
        found: list[tuple[Process, psutil.Process]] = []

        def some(seen: Seen) -> bool:
            ours = {p.pid: p for p in self.run.family()}  # nobody else is ever sent a signal
            found[:] = [(p, ours[p.pid]) for p in seen.of_role(planned.fault.role) if p.pid in ours]
            return bool(found)

        seen = self.run.until(some, f"a {planned.fault.role} among the processes of the run")
        victim, process = found[int(planned.draw * len(found))]
        return seen, victim, process

    def _await(self, recovery: Recovering) -> Seen:
        seen = self.run.until_recovered(recovery)
        self.figures.measured(recovery.fault.measured_as, recovery.committed_s, seen.at - recovery.at)
        if seen.at - recovery.at > _SLOW_S:
            what, missing = f"{recovery.fault} at version {recovery.before.version}", " and ".join(recovery.missing)
            self.figures.slow.append(f"{what}: {seen.at - recovery.at:.1f} s, at last for {missing}")
        return seen


def _send(process: psutil.Process, number: int) -> float:
    """Send a signal; returns when."""
    at = time.monotonic()
    process.send_signal(number)
    return at
