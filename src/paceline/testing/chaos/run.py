"""One run of a campaign: start it, watch it, join it, resume it, and end it at a fixed step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psutil

from paceline.config.load import FAULTS, HEARTBEAT_TIMEOUT_S, LANE, TIMEOUT_S
from paceline.errors import TransportError
from paceline.runtime.fault_injection import plan_for_workers
from paceline.runtime.rundir import RunDir
from paceline.testing.chaos.plan import CampaignSpec, Fault, Kind
from paceline.testing.chaos.recovery import Recovering
from paceline.testing.chaos.watch import Seen, Watch
from paceline.testing.host_cluster import SUPERVISOR, HostCluster
from paceline.testing.launch import Footprint, Launched, kill, segments, started_by

_EVERY_S = 0.02
_AHEAD = 10  # a run may commit this many steps before the request to end at a later step reaches it
_ROUND = 50  # runs end at a multiple of this many steps, so that rounds can share runs without faults
_RESTARTS = 1_000_000


class Stuck(Exception):
    """The run failed, or it did not reach an expected state in time."""


class Ended(Exception):
    """The script came to its end: the run ended well."""


class Ticker(Protocol):
    """Where a campaign prints."""

    def note(self, text: str) -> None:
        """Print a line that stays."""
        ...

    def progress(self, text: str) -> None:
        """Print the current state in place of the last one."""
        ...


class ChaosRun:
    """A run directory and its processes. `workers` and `servers` are the wanted numbers.

    If the network is to be cut, the run has a `cluster` with a host for each role.
    """

    def __init__(self, spec: CampaignSpec, name: str, screen: Ticker) -> None:
        self.spec = spec
        self.screen = screen
        self.dir = RunDir(spec.dir / name)
        self.watch = Watch(self.dir)
        self.workers, self.servers = spec.workers, spec.servers
        self.joiners: list[Launched] = []
        self.resumes = 0
        self.counts = spec.dir / f"{name}.faults"
        self._out = spec.dir / f"{name}.out"
        self._segments = segments()
        self._launched: Launched | None = None
        self._everyone: dict[int, psutil.Process] = {}
        self.cluster: HostCluster | None = None
        if spec.cuts:
            self.cluster = HostCluster(spec.dir / f"{name}.hosts", spec.hosts, self.env, run=self.dir.path)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Make the hosts of the run, if it has any, and run this thread beside its coordinator during the block."""
        with ExitStack() as stack:
            if self.cluster is not None:
                stack.enter_context(self.cluster)
                stack.enter_context(self.cluster.inside(SUPERVISOR))
            yield

    # ------------------------------------------------------------ processes

    def start(self) -> None:
        """Start the run."""
        spec = self.spec
        mode = [*spec.method, *(["--slots", spec.slots] if spec.slots else [])]
        words = [*mode, *self._size, spec.script, *spec.arguments]
        if self.cluster is None:
            self._launched = Launched(["run", "--dir", self.dir.path, *words], self._out, self.env)
            return
        for host in self.cluster.hosts:
            self.cluster.agent(host, cores=1)
        self._launched = self.cluster.start("--shared-dir", "--min-hosts", len(self.cluster.hosts), *words)

    def resume(self) -> None:
        """Resume the run from its newest checkpoint, in the next shape."""
        if self.spec.shapes:
            self.workers, self.servers = self.spec.shapes[self.resumes % len(self.spec.shapes)]
        else:
            self.workers, self.servers = self.spec.workers, self.spec.servers
        self.resumes += 1
        self._launched = Launched(["run", "--resume", self.dir.path, *self._size], self._out, self.env)

    @property
    def _size(self) -> list[object]:
        """The options of ``paceline run`` for a run that is new or resumed."""
        shape = ["-w", self.workers, *(["-s", self.servers] if self.servers else [])]
        keep = ["--checkpoint-every", self.spec.checkpoint_every]
        if not self.spec.storms:
            keep += ["--max-restarts", str(_RESTARTS)]
        return [*shape, *keep]

    @property
    def env(self) -> dict[str, str]:
        """The environment of every process of the run."""
        # Faults stop a process for up to two leases, and the launcher must not take it for one that hangs.
        env = {HEARTBEAT_TIMEOUT_S: str(self.spec.lease_s), TIMEOUT_S: str(max(30.0, 8 * self.spec.lease_s))}
        if self.spec.storms:  # nothing is stopped
            env = {}
        env[LANE] = self.spec.lane
        faults = self.spec.messages
        if faults.kinds:
            env[FAULTS] = plan_for_workers(
                self.spec.seed, faults.drop, faults.duplicate, (faults.delay, faults.delay_s), self.counts
            )
        return env

    def join(self, *, extra: bool = False) -> None:
        """Start a worker by `paceline join`. An `extra` worker raises the wanted number of workers."""
        self.workers += extra
        words = ["join", self.dir.path, self.spec.script, *self.spec.arguments]
        out = self._out.with_name(f"{self.dir.path.name}.join-{len(self.joiners)}.out")
        self.joiners.append(Launched(words, out, self.env))

    def dismiss(self) -> Launched:
        """Lower the wanted number of workers, and return the oldest joined worker, which the caller must end."""
        self.workers -= 1
        return self.joiners.pop(0)

    def forget_ended_joiners(self) -> None:
        """Forget the `paceline join` commands that have ended."""
        self.joiners = [joiner for joiner in self.joiners if joiner.code is None]

    def scale(self, servers: int) -> None:
        """Ask the run for another number of servers.

        Raises:
            TransportError: no coordinator accepted the request.
        """
        self.servers = servers
        self.watch.scale(servers)

    def set_mode(self, mode: str) -> int:
        """Change the mode of the run; returns the step from which on it holds.

        Raises:
            TransportError: no coordinator accepted the request.
        """
        return self.watch.set_mode(mode)

    def family(self) -> list[psutil.Process]:
        """Every process of the run, the launcher first."""
        assert self._launched is not None
        found = self._launched.family() + [p for joiner in self.joiners for p in joiner.family()]
        found += [] if self.cluster is None else self.cluster.family()
        self._everyone |= {p.pid: p for p in found}
        return found

    def is_joined(self, process: psutil.Process) -> bool:
        """Whether `process` was started by `paceline join`. Such a worker is not started again when it is killed."""
        return any(process.ppid() == joiner.process.pid for joiner in self.joiners)

    def kill_launcher(self, *, everything: bool) -> Footprint:
        """Send SIGKILL to the launcher, or to every process; returns what the run used on this machine."""
        family = self.family()
        footprint = Footprint(family, self._segments)
        kill(family if everything else family[:1])
        assert self._launched is not None
        self._launched.process.wait()
        footprint.add(started_by(self._launched.process.pid))
        for joiner in self.joiners:
            joiner.end()
        self.joiners.clear()
        return footprint

    # ------------------------------------------------------------ looking

    def look(self) -> Seen | None:
        """The current state of the run; None while no coordinator answers.

        Raises:
            Ended: the run ended well.
            Stuck: the run failed.
        """
        seen = self.watch.look()
        if seen is not None and seen.failure is not None:
            raise Stuck(f"the job failed: {seen.failure}; logs are in {self.dir.logs}")
        self.check()
        return seen

    def check(self) -> None:
        """Raise `Ended` or `Stuck`, as `look` does, if the launcher has ended."""
        assert self._launched is not None
        code = self._launched.code
        if code == 0:
            raise Ended
        if code is not None:
            raise Stuck(f"the launcher ended with {code}: {self._launched.tail()}\nlogs are in {self.dir.logs}")

    def until(self, reached: Callable[[Seen], bool], awaited: str | Callable[[], str]) -> Seen:
        """Wait until `reached` returns True for a status; returns that status.

        Raises:
            Stuck: that took too long; the message says what was `awaited`.
        """
        deadline = time.monotonic() + self.spec.deadline_s
        while True:
            began = time.monotonic()
            seen = self.look()
            if seen is not None and reached(seen):
                return seen
            if began > deadline:
                what = awaited if isinstance(awaited, str) else awaited()
                raise Stuck(f"waited {self.spec.deadline_s:.0f} s for {what}; logs are in {self.dir.logs}")
            time.sleep(max(0.0, began + _EVERY_S - time.monotonic()))

    def until_recovered(self, recovery: Recovering) -> Seen:
        """Wait until the run has recovered from a fault. With all-reduce, that many workers also hold every block."""
        members = recovery.workers if self.spec.collective else 0
        return self.until(
            lambda seen: recovery.see(seen) and seen.whole >= members,
            lambda: f"{', '.join(recovery.missing) or 'members'} after {recovery.fault}",
        )

    def until_whole(self) -> Seen:
        """Wait until the run has the wanted workers, servers and copies, and commits again."""
        seen = self.until(lambda seen: seen.version >= 0, "the first version")
        return self.until_recovered(
            Recovering(Fault(Kind.JOIN, "worker"), seen.at, seen, None, self.workers, self.servers)
        )

    # ------------------------------------------------------------ the end

    def finish(self) -> dict[str, Any]:
        """Let the run end at a fixed step; returns its summary.

        Raises:
            Stuck: the run does not end, or it fails.
        """
        try:
            self._stop()
            version, deadline = -1, 0.0
            while True:
                seen = self.look()
                if seen is not None and seen.version > version:
                    version, deadline = seen.version, time.monotonic() + self.spec.deadline_s
                elif time.monotonic() > deadline:
                    raise Stuck(f"the run does not end after version {version}; logs are in {self.dir.logs}")
                time.sleep(_EVERY_S)
        except Ended:
            pass
        try:
            summary: dict[str, Any] = json.loads(self.dir.summary_file.read_text())
        except FileNotFoundError:
            raise Stuck(f"the run ended without a summary; logs are in {self.dir.logs}") from None
        if summary["state"] != "done":
            raise Stuck(f"the run ended as {summary['state']}; logs are in {self.dir.logs}")
        return summary

    def _stop(self) -> None:
        seen = self.until(lambda seen: True, "a status")
        self.family()
        end = (seen.step + _AHEAD) // _ROUND * _ROUND + _ROUND
        if seen.end_step is None or end < seen.end_step:
            try:
                self.watch.stop(end - 1, "the plan of faults is done")
            except TransportError as error:
                raise Stuck(
                    f"the run did not accept the request to end: {error}; logs are in {self.dir.logs}"
                ) from None

    def leftovers(self, patience_s: float = 5.0) -> list[str]:
        """Processes, ports and shared memory that are left after the end of the run."""
        return Footprint(list(self._everyone.values()), self._segments).wait_gone(patience_s)[1]

    def close(self) -> None:
        """End all processes that were started."""
        self.watch.close()
        if self._launched is None:
            return
        self.family()
        for launched in (*self.joiners, self._launched):
            launched.end()
        kill(self._everyone.values())

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints."""
        return Path(self.dir.checkpoints)
