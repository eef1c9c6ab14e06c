"""A scripted run for tests of chaos faults: its statuses are made up, the processes that get the signals are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

import psutil
import pytest
from tests.kit.virtual_time import VirtualTime, virtual_time

from paceline.testing.chaos.campaigns import SCRIPT
from paceline.testing.chaos.figures import Figures
from paceline.testing.chaos.injector import Injector
from paceline.testing.chaos.plan import CampaignSpec, Fault, Kind, Planned
from paceline.testing.chaos.run import ChaosRun, Ended
from paceline.testing.chaos.watch import Process, Seen


@dataclass
class Script:
    """The state of a scripted run: it commits every 10 ms. `change` is called before each status."""

    seen: Seen
    change: Callable[[Script], None] = lambda script: None

    def look(self) -> Seen:
        now = time.monotonic()
        self.seen = replace(self.seen, at=now, version=int(now * 100), step=int(now * 100))
        self.change(self)
        return self.seen

    def respawn(self, name: str, pid: int) -> None:
        processes = dict(self.seen.processes)
        processes[name] = Process(name, name.split("-")[0], pid, f"host of {name}")
        self.seen = replace(self.seen, processes=processes)


class ScriptedRun(ChaosRun):
    """A run without a launcher."""

    def __init__(self, spec: CampaignSpec, script: Script, processes: list[psutil.Process]) -> None:
        super().__init__(spec, "run", Quiet())
        self.script = script
        self.processes = processes
        self.code: int | None = None

    def family(self) -> list[psutil.Process]:
        return self.processes

    def look(self) -> Seen | None:
        self.check()
        return self.script.look()

    def check(self) -> None:
        if self.code == 0:
            raise Ended


class Quiet:
    def note(self, text: str) -> None:
        pass

    def progress(self, text: str) -> None:
        pass


def stage(tmp_path: Path, name: str, victim: psutil.Process, **changes: Any) -> tuple[ScriptedRun, Injector]:
    """Return a run in which `victim` is the process called `name`, and its injector."""
    spec = CampaignSpec(
        **{
            "script": SCRIPT, "faults": {Fault(Kind.KILL, "worker"): 1}, "limits": {}, "dir": tmp_path,
            "workers": 2, "servers": 1, "lease_s": 0.6, "deadline_s": 1.0, **changes,
        }
    )  # fmt: skip
    pids = {"coordinator": 1, "server-0": 2, "worker-0": 3, "worker-1": 4, name: victim.pid}
    processes = {n: Process(n, n.split("-")[0], pid, f"host of {n}") for n, pid in pids.items()}
    seen = Seen(0.0, 1, 0, 0, 0, None, "running", False, 2, 0, processes, None, "i0000-v0000000001")
    run = ScriptedRun(spec, Script(seen), [victim])
    return run, Injector(run, Figures(spec, ""))


def planned(kind: Kind, role: str) -> Planned:
    return Planned(Fault(kind, role), 0.0, 0.99, 0.0)


def dead(process: psutil.Process) -> bool:
    return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)


class Victim(psutil.Process):  # type: ignore[misc]
    """A process on which a signal has had its effect when `send_signal` returns."""

    def send_signal(self, sig: int) -> None:
        super().send_signal(sig)
        deadline = monotonic() + 30.0  # real time
        while not self._is_in(sig):
            assert monotonic() < deadline, f"signal {sig} has no effect"
            os.sched_yield()

    def _is_in(self, sig: int) -> bool:
        if sig in (signal.SIGKILL, signal.SIGTERM):
            return dead(self)
        return bool(self.status() == (psutil.STATUS_STOPPED if sig == signal.SIGSTOP else psutil.STATUS_SLEEPING))


@contextmanager
def sleeper() -> Iterator[Victim]:
    """A process that does nothing."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield Victim(process.pid)
    finally:
        process.kill()
        process.wait()


_CLOCKED = (
    *("injector", "run", "target", "watch"),
    *("process_faults", "launcher_faults", "network_faults", "shape_faults"),
)


def chaos_clock(monkeypatch: pytest.MonkeyPatch, test: ModuleType) -> VirtualTime:
    """Let the campaign of a scripted run, and the module of its test, use a virtual clock."""
    names = [f"paceline.testing.chaos.{name}" for name in _CLOCKED]
    return virtual_time(monkeypatch, test, sys.modules[__name__], named=names)
