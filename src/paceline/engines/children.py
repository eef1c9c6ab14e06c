"""Child processes of this launcher: started, watched, and ended without remainder."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from paceline.config.load import child_env

_MAX_WAITING = 2000


@dataclass(frozen=True, slots=True)
class Line:
    """A role printed a line."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    """A role's process ended; a negative code is a signal."""

    name: str
    pid: int
    code: int


@dataclass(slots=True)
class Child:
    """One process."""

    name: str
    process: subprocess.Popen[bytes]
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None


class Children:
    """Processes in sessions of their own, so that Ctrl-C reaches this process only, which then ends them in order.

    Everything they print goes to ``logs/NAME.log`` and, as `Line`, to `events`; each end is an `Exit`, after the
    child's last line.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        # Bounded: a role that prints faster than the screen shows waits for it, as at any pipe.
        self.events: queue.Queue[Line | Exit] = queue.Queue(maxsize=_MAX_WAITING)
        self._ending = threading.Event()
        self.children: dict[str, Child] = {}

    def start(self, name: str, arguments: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start ``python -m paceline.runtime.process`` with this process as the parent it must not outlive."""
        command = [sys.executable, "-m", "paceline.runtime.process", str(os.getpid()), *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_env({"PYTHONUNBUFFERED": "1", **env}),
            start_new_session=True,
        )
        child = Child(name, process)
        self.children[name] = child
        assert process.stdout is not None
        log = (self.logs / f"{name}.log").open("ab", buffering=0)
        watcher = threading.Thread(target=self._watch, args=(child, process.stdout, log), daemon=True)
        child.threads.append(watcher)
        watcher.start()
        return child

    def _watch(self, child: Child, stdout: IO[bytes], log: IO[bytes]) -> None:
        reader = threading.Thread(target=self._read, args=(child.name, stdout, log), daemon=True)
        reader.start()
        code = child.process.wait()
        reader.join(timeout=0.5)  # a grandchild may hold the pipe open for longer than the child lived
        self._put(Exit(child.name, child.process.pid, code))

    def _put(self, event: Line | Exit) -> None:
        while True:
            try:
                self.events.put(event, timeout=0.05)
                return
            except queue.Full:
                if self._ending.is_set():
                    return  # nobody looks any more; the log has the line

    def _read(self, name: str, stdout: IO[bytes], log: IO[bytes]) -> None:
        with stdout, log:
            for line in stdout:
                log.write(line)
                self._put(Line(name, line.decode(errors="replace").rstrip("\r\n")))

    def alive(self, prefix: str = "") -> list[Child]:
        """Children that run, by the start of their name."""
        return [c for n, c in self.children.items() if n.startswith(prefix) and c.alive]

    def end(self, patience_s: float = 1.0) -> None:
        """End all: ask, then insist; with them whatever they started in their sessions."""
        self._ending.set()
        for child in self.alive():
            child.process.terminate()
        deadline = time.monotonic() + patience_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        for child in self.children.values():
            try:
                os.killpg(child.process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        for child in self.children.values():
            child.process.wait()
            for thread in child.threads:
                thread.join(timeout=1.0)
