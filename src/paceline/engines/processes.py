"""Starts the child processes of a launcher, watches them, and ends them with everything that they started."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from paceline.config.load import child_env, forking
from paceline.config.role_spec import RoleSpec
from paceline.engines.fork_client import ForkClient, ServerEnd, reap_group
from paceline.engines.output import Exit, Line, Output
from paceline.runtime.roles import Role, role_named
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import hand_over

logger = logging.getLogger(__name__)

_MAX_WAITING = 2000
_FULL_S = 0.02  # seconds between two looks at a full queue


@dataclass(slots=True)
class Child:
    """One child process: start number `start` of `name`. Only the thread `watcher` may wait for its exit status."""

    role: Role
    name: str
    start: int
    pid: int
    """The process id, which is also the id of its process group. The protocol names processes by `start` instead."""

    ended: threading.Event = field(default_factory=threading.Event)
    watcher: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self.ended.is_set()

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to its whole process group. Does nothing if the process has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self.alive:
                return
            if group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


class Children:
    """The child processes of a launcher, each in its own session: Ctrl-C reaches only the launcher, which ends them.

    Everything that a child prints goes to ``logs/NAME.log`` and, as `Line`, to `events`; an `Exit` follows the last
    line of a child that ended. When a child ends, all processes that are left in its session are killed.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._fork_client = ForkClient()
        # An exception that a signal raises in the reading thread cannot leave a SimpleQueue locked. `_put` bounds it: a
        # process that prints faster than the screen can show must wait, as with any pipe.
        self.events: queue.SimpleQueue[Line | Exit] = queue.SimpleQueue()
        self._ending = threading.Event()
        self.children: dict[str, Child] = {}
        self._watchers: list[threading.Thread] = []

    def warm(self) -> None:
        """Start the fork server, which loads torch once for all children, unless PACELINE_FORK is 0.

        The first children wait until it has loaded torch. While a later one loads, children start by their commands.
        """
        if forking():
            self._fork_client.open()

    def fork_server_ended(self) -> ServerEnd | None:
        """How the fork server ended, if it did since it was started. Each end is told once; `warm` starts another."""
        return self._fork_client.ended()

    @property
    def fork_server_ready(self) -> bool:
        """Whether the fork server has loaded torch, so that children start by a fork."""
        return self._fork_client.ready

    def start(self, spec: RoleSpec, *, cwd: Path | None = None, defaults: Mapping[str, str] | None = None) -> Child:
        """Start the process that `spec` configures. It is killed when this process ends.

        The role's variables override the environment of this process, which overrides `defaults`. A name may be started
        again after its `Exit`.
        """
        role, name = role_named(spec.role), spec.name
        env = child_env({"PYTHONUNBUFFERED": "1", **role.environment(spec)}, defaults)
        file = hand_over(self._run, spec)
        words = (str(os.getpid()), name, str(file))
        output = Output(name, self._run.logs / f"{name}.log")
        with contextlib.ExitStack() as undo:
            undo.callback(output.close)
            pid = self._fork_client.fork(words, env, cwd, output.writing, scripted=role.scripted, light=role.light)
            if pid is None:
                pid = _spawn(role_command(words), env, cwd, output.writing)
            output.handed_over()
            undo.pop_all()  # the watcher closes the files
        child = self.children[name] = Child(role, name, spec.start, pid)
        child.watcher = threading.Thread(target=self._watch, args=(child, output), daemon=True)
        self._watchers = [w for w in self._watchers if w.is_alive()] + [child.watcher]
        child.watcher.start()
        return child

    def _watch(self, child: Child, output: Output) -> None:
        reader = threading.Thread(target=output.read, args=(self._put,), daemon=True)
        reader.start()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # Kill the group before `waitpid`: until then the system cannot give its id to another group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.ended.set()
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        reap_group(child.pid)
        reader.join(timeout=0.5)  # a process that left the session may keep the pipe open
        self._put(Exit(child.name, child.start, code))

    def _put(self, event: Line | Exit) -> None:
        while self.events.qsize() >= _MAX_WAITING:
            if self._ending.is_set():
                return  # the launcher reads no more events; the log has the line
            time.sleep(_FULL_S)
        self.events.put(event)

    def alive(self, role: Role | None = None) -> list[Child]:
        """The children that run: those of `role`, or all of them."""
        return [c for c in self.children.values() if c.alive and (role is None or c.role is role)]

    def end(self, patience_s: float = 1.0, *, at_once: Callable[[Role], bool] = lambda role: False) -> None:
        """Send SIGTERM to all children, and SIGKILL to the groups of those that still run after `patience_s`.

        Children of a role for which `at_once` returns True get SIGKILL at once.
        """
        self._ending.set()
        self._fork_client.close()
        for child in self.alive():
            if at_once(child.role):
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


def role_command(words: Sequence[str]) -> list[str]:
    """The command that starts a role's process; `words` are the arguments of `paceline.runtime.role_process`."""
    return [sys.executable, "-m", "paceline.runtime.role_process", *words]


def _spawn(command: Sequence[str], env: Mapping[str, str], cwd: Path | None, output: Sequence[IO[bytes]]) -> int:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output[0],
        stderr=output[1],
        env=env,
        cwd=cwd,
        start_new_session=True,
    )
    process.returncode = 0  # so that Popen does not wait for the process: the watcher does, by its id
    return process.pid
