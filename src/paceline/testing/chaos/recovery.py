"""Decide from statuses when a run has recovered from a fault."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.testing.chaos.plan import Fault, Kind
from paceline.testing.chaos.watch import Process, Seen


@dataclass(slots=True)
class Recovering:
    """Decides whether a run has recovered from a fault at the time `at`. Pass every later status to `see`.

    `before` is the last status before the fault. `victim` is the process that was hit, None for a fault that hits no
    process or the whole run. With `returns`, a killed victim is started again under its name. The run must reach
    `workers` and `servers`; with `new`, a server that held no blocks before must hold some. With `replicas`, the loss
    of a server is a failover, so the run must also reach a new placement. `committed_s` is the time to the next commit,
    None until there is one. `pause_s` is the longest time without a commit. `missing` says what the run lacks, or
    lacked last.
    """

    fault: Fault
    at: float
    before: Seen
    victim: Process | None
    workers: int
    servers: int
    returns: bool = True
    replicas: int = 0
    new: bool = False
    committed_s: float | None = None
    pause_s: float = 0.0
    missing: list[str] = field(default_factory=lambda: ["a coordinator that answers"])
    _history: tuple[int, int] | None = None
    _base: int = -1
    _last: tuple[int, float] | None = None

    def see(self, seen: Seen) -> bool:
        """Take one status; True if it shows that the run has recovered."""
        self._pause(seen)
        missing = []
        if seen.generation < self._min_generation:
            missing.append(f"generation {self._min_generation} of the coordinator")
        if seen.incarnation < self._min_incarnation:
            missing.append(f"incarnation {self._min_incarnation}")
        if seen.epoch < self._min_epoch:
            missing.append(f"epoch {self._min_epoch} of the placement")
        if not missing:
            self._count(seen)
        if self.committed_s is None:
            missing.append(f"a commit above version {self._base}")
        missing += self._absent(seen)
        if missing:
            self.missing = missing
        return not missing

    @property
    def _min_generation(self) -> int:
        return self.before.generation + (self._dead("coordinator") or self._all_dead)

    @property
    def _min_incarnation(self) -> int:
        return self.before.incarnation + ((self._dead("server") and not self.replicas) or self._all_dead)

    @property
    def _min_epoch(self) -> int:
        held = self.victim is not None and self.victim.name in self.before.holders
        return self.before.epoch + 1 if self.replicas and held and self._dead("server") else 0

    def _pause(self, seen: Seen) -> None:
        """Update the longest time without a commit from one more status."""
        version, at = self._last or (self.before.version, self.at)
        self.pause_s = max(self.pause_s, seen.at - at)
        self._last = (seen.version, seen.at) if seen.version > version else (version, at)

    def _dead(self, role: str) -> bool:
        return self.fault.role == role and self.fault.kind in (Kind.KILL, Kind.SAVING)

    @property
    def _all_dead(self) -> bool:
        return self.fault.kind in (Kind.ALL, Kind.LAUNCHER)

    def _count(self, seen: Seen) -> None:
        """Set `committed_s` at the first commit after the fault.

        A commit is one above the version of the first status after the fault; a new generation or incarnation begins
        this comparison again.
        """
        history = (seen.generation, seen.incarnation)
        if history != self._history and self.committed_s is None:
            self._history, self._base = history, seen.version
        if self.committed_s is None and seen.version > self._base:
            self.committed_s = seen.at - self.at

    def _absent(self, seen: Seen) -> list[str]:
        absent = []
        if self.victim is not None:
            now = seen.processes.get(self.victim.name)
            if self.fault.kind in (Kind.KILL, Kind.SAVING) and self.returns:
                if now is None or now.pid == self.victim.pid:
                    absent.append(f"{self.victim.name} with another pid than {self.victim.pid}")
            elif self.fault.kind == Kind.STOP:
                if now is None:
                    absent.append(f"{self.victim.name} among the processes")
            elif now is not None and now.pid == self.victim.pid:
                absent.append(f"the end of {self.victim.name}")
        if seen.rewinding:
            absent.append("the end of the rewind")
        if seen.workers_alive < self.workers:
            absent.append(f"{self.workers} workers (there are {seen.workers_alive})")
        if len(seen.of_role("server")) < self.servers:
            absent.append(f"{self.servers} servers (there are {len(seen.of_role('server'))})")
        if self.fault.kind == Kind.DRAIN and len(seen.of_role("server")) > self.servers:
            absent.append(f"the end of one of {len(seen.of_role('server'))} servers")
        if self.new and not (seen.holders & set(seen.processes)) - self.before.holders:
            absent.append("blocks on the new server")
        if seen.draining:
            absent.append(f"the end of {', '.join(sorted(seen.draining))}")
        if seen.short:
            absent.append(f"a copy of {seen.short} blocks")
        return absent
