"""Read the status of a run from outside, even when its coordinator restarts, and remember what the statuses showed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.clients.observer import Observer
from paceline.config.live import parse_change
from paceline.errors import TransportError
from paceline.messages.status import Status
from paceline.runtime.rundir import RunDir

_LOOK_S = 0.25
_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the run, with its name in the run and the name of its host."""

    name: str
    role: str
    pid: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """The facts of one status. `at` is the time at which it arrived.

    `epoch` is the placement epoch. `short` blocks lack a copy, `building` blocks are being copied. `holders` are the
    servers that hold blocks, `whole` how many of them hold every block. `mode` is that of the next step.
    """

    at: float
    generation: int
    incarnation: int
    version: int
    step: int
    end_step: int | None
    state: str
    rewinding: bool
    workers_alive: int
    lost_workers: int
    processes: Mapping[str, Process]
    failure: str | None = None
    checkpoint: str | None = None
    epoch: int = 0
    short: int = 0
    building: int = 0
    holders: frozenset[str] = frozenset()
    whole: int = 0
    mode: str = ""
    draining: frozenset[str] = frozenset()

    @classmethod
    def of(cls, status: Status, at: float) -> Seen:
        """Take the facts from a status that arrived at time `at`."""
        found = [Process(p.name, p.role, p.pid, p.host) for p in status.processes]
        processes = {p.name: p for p in found} | {"coordinator": Process("coordinator", "coordinator", status.pid)}
        failure, checkpoint = status.failure, status.checkpoint
        return cls(
            at=at,
            generation=status.generation,
            incarnation=status.incarnation,
            version=status.version,
            step=status.step or 0,
            end_step=status.end_step,
            state=status.state,
            rewinding=status.rewinding,
            workers_alive=status.workers_alive,
            lost_workers=status.lost_workers,
            processes=processes,
            failure=None if failure is None else f"{failure.kind}: {failure.reason}",
            checkpoint=None if checkpoint is None else checkpoint.folder,
            epoch=status.placement.epoch,
            short=status.placement.short,
            building=status.placement.building,
            holders=frozenset(name for name, held in status.placement.servers.items() if any(held)),
            whole=sum(sum(held) == status.placement.blocks > 0 for held in status.placement.servers.values()),
            mode=status.mode or "",
            draining=frozenset(status.draining),
        )

    def of_role(self, role: str) -> list[Process]:
        """The processes of a role, sorted by name."""
        return [self.processes[name] for name in sorted(self.processes) if self.processes[name].role == role]


@dataclass(slots=True)
class Shown:
    """What all statuses showed: versions by incarnation, and the number of evicted workers."""

    versions: dict[int, set[int]] = field(default_factory=dict)
    evictions: int = 0
    generation: int = 0
    lost_workers: int = 0

    def add(self, seen: Seen) -> None:
        """Add one status."""
        if seen.version >= 0:
            self.versions.setdefault(seen.incarnation, set()).add(seen.version)
        if seen.generation != self.generation:  # a new coordinator counts `lost_workers` from its log
            self.generation, self.lost_workers = seen.generation, seen.lost_workers
        self.evictions += max(0, seen.lost_workers - self.lost_workers)
        self.lost_workers = seen.lost_workers


class Watch:
    """Reads the status of one run and sends it requests. Not thread-safe."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.shown = Shown()
        self.last: Seen | None = None
        self._observer: Observer | None = None

    def look(self) -> Seen | None:
        """The current state of the run; None if no coordinator answers at once."""
        if self._observer is None and not self.run.coordinator_file.exists():
            time.sleep(_EVERY_S)
            return None
        try:
            status = self._connected().status(timeout_s=_LOOK_S)
        except TransportError:
            return None
        self.last = Seen.of(status, time.monotonic())
        self.shown.add(self.last)
        return self.last

    def stop(self, step: int, reason: str) -> None:
        """Ask the job to end after `step`.

        Raises:
            TransportError: no coordinator accepted the request.
        """
        self._connected().stop(step, reason)

    def scale(self, servers: int) -> None:
        """Ask for another number of servers.

        Raises:
            TransportError: no coordinator accepted the request.
        """
        self._connected().scale(servers=servers)

    def set_mode(self, mode: str) -> int:
        """Change the mode; returns the step from which on it holds.

        Raises:
            TransportError: no coordinator accepted the request.
        """
        return self._connected().set_dials(parse_change((f"mode={mode}",)), "a campaign").step

    def _connected(self) -> Observer:
        if self._observer is None:
            self._observer = Observer(self.run.coordinator, self.run.token())
        return self._observer

    def close(self) -> None:
        """End the session."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None
