"""Child processes of this launcher: started, watched, and ended without remainder."""

from __future__ import annotations

import contextlib
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

from paceline.config.load import child_env, forking, via
from paceline.engines.fork_client import Nursery, bury

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
    """One process. `watcher` is the only one who waits for it."""

    name: str
    pid: int
    """Its number, and that of its process group."""

    ended: threading.Event = field(default_factory=threading.Event)
    watcher: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return not self.ended.is_set()

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to it, or to its whole group. One that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self.alive:
                return
            if group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


class Children:
    """Processes in sessions of their own, so that Ctrl-C reaches this process only, which then ends them in order.

    Everything they print goes to ``logs/NAME.log`` and, as `Line`, to `events`; each end is an `Exit`, after the
    child's last line. Whatever a child leaves behind in its session is killed when it ends.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._nursery = Nursery()
        # Bounded: a role that prints faster than the screen shows waits for it, as at any pipe.
        self.events: queue.Queue[Line | Exit] = queue.Queue(maxsize=_MAX_WAITING)
        self._ending = threading.Event()
        self.children: dict[str, Child] = {}
        self._watchers: list[threading.Thread] = []

    def warm(self) -> None:
        """There will be several children that need torch: have it loaded once for all of them."""
        if forking():
            self._nursery.open()

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: Path | None = None,
        defaults: Mapping[str, str] | None = None,
        light: bool = False,
    ) -> Child:
        """Start ``python -m paceline.runtime.role_process`` with this process as the parent it must not outlive.

        `env` goes over this process's environment, and that over `defaults`. A name is free again after its `Exit`.
        Where the environment says so (`load.via`), another command starts it, and becomes it. One that is `light` does
        without torch, and is not forked.
        """
        env = child_env({"PYTHONUNBUFFERED": "1", **env}, defaults)
        before = via(name)
        with contextlib.ExitStack() as undo:
            log = undo.enter_context((self.logs / f"{name}.log").open("ab", buffering=0))
            reading, writing = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
            undo.enter_context(reading)
            with writing:
                pid = None if light or before else self._nursery.bear(arguments, env, cwd, writing)
                if pid is None:
                    command = [
                        *before,
                        sys.executable,
                        "-m",
                        "paceline.runtime.role_process",
                        str(os.getpid()),
                        *arguments,
                    ]
                    pid = _spawn(command, env, cwd, writing)
            undo.pop_all()  # it goes on in the watcher
        child = self.children[name] = Child(name, pid)
        child.watcher = threading.Thread(target=self._watch, args=(child, reading, log), daemon=True)
        self._watchers = [w for w in self._watchers if w.is_alive()] + [child.watcher]
        child.watcher.start()
        return child

    def _watch(self, child: Child, stdout: IO[bytes], log: IO[bytes]) -> None:
        reader = threading.Thread(target=self._read, args=(child.name, stdout, log), daemon=True)
        reader.start()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # Not waited for yet, it still owns its number: the group is surely its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.ended.set()
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        bury(child.pid)
        reader.join(timeout=0.5)  # a process that fled from the session may hold the pipe open
        self._put(Exit(child.name, child.pid, code))

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

    def end(self, patience_s: float = 1.0, *, at_once: str | None = None) -> None:
        """End all: ask, then insist; with them whatever they started in their sessions.

        Those whose name starts with `at_once` are not asked.
        """
        self._ending.set()
        self._nursery.close()
        for child in self.alive():
            if at_once is not None and child.name.startswith(at_once):
                child.signal(signal.SIGKILL, group=True)
            else:
                child.signal(signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        for child in self.alive():
            child.signal(signal.SIGKILL, group=True)
        for watcher in self._watchers:
            watcher.join(timeout=2.0)


def _spawn(command: Sequence[str], env: Mapping[str, str], cwd: Path | None, output: IO[bytes]) -> int:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=cwd,
        start_new_session=True,
    )
    process.returncode = 0  # it is waited for by its number
    return process.pid
