"""Start ``paceline`` commands as a user does, and end all processes that these commands started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from paceline.config.load import child_env

# The program of a launcher: it dies with its campaign, and its roles die with it. It handles SIGINT even if the
# campaign was started in the background, where the shell makes its children ignore SIGINT.
_BOUND = """
import signal, sys
from paceline.orphans import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
signal.signal(signal.SIGINT, signal.default_int_handler)
from paceline.cli.main import main
main()
"""
_ROLE = "paceline.runtime.role_process"
_SHM = Path("/dev/shm")


def command(words: Sequence[object]) -> list[str]:
    """The command line that runs ``paceline WORDS`` as a child of this process."""
    return [sys.executable, "-c", _BOUND, str(os.getpid()), *map(str, words)]


class Launched:
    """One ``paceline`` command that runs in the background. Its output is written to the file `out`."""

    def __init__(self, words: Sequence[object], out: Path, env: Mapping[str, str]) -> None:
        self.words = [str(word) for word in words]
        self.out = out
        with out.open("ab") as file:
            self.process = subprocess.Popen(
                command(words),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=child_env(dict(env)),
                start_new_session=True,  # Ctrl-C then reaches only the campaign, which ends this command properly
            )

    @property
    def code(self) -> int | None:
        """The exit code of the command; None while it runs."""
        return self.process.poll()

    def family(self) -> list[psutil.Process]:
        """This process and all its descendants."""
        try:
            launcher = psutil.Process(self.process.pid)
            return [launcher, *launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def wait(self, timeout_s: float) -> int | None:
        """The exit code; None if the command has not ended in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill the command and all its descendants now."""
        family = self.family()
        if self.code is None:
            self.process.send_signal(signal.SIGINT)
            if self.wait(3.0) is None:
                self.process.kill()
        self.process.wait()
        kill(family)

    def tail(self, lines: int = 5) -> str:
        """The last lines of its output."""
        return "\n".join(self.out.read_text(errors="replace").splitlines()[-lines:])


def finish(words: Sequence[object], out: Path, env: Mapping[str, str], timeout_s: float) -> Launched:
    """Run a command to its end.

    Raises:
        TimeoutError: the command did not end in time; it was killed.
    """
    launched = Launched(words, out, env)
    try:
        if launched.wait(timeout_s) is None:
            raise TimeoutError(f"`paceline {' '.join(launched.words)}` did not end within {timeout_s:.0f} s; see {out}")
    finally:
        launched.end()
    return launched


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to all `processes`."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


class Footprint:
    """The processes, listening ports and shared memory of a run on this machine."""

    def __init__(self, processes: Sequence[psutil.Process], segments_before: frozenset[str]) -> None:
        self._processes = list(processes)
        self._ports = listening(self._processes)
        self._segments = segments() - segments_before

    def add(self, processes: Iterable[psutil.Process]) -> None:
        """Add processes, with their listening ports."""
        self._processes += processes

    def left(self) -> list[str]:
        """The names of the processes, ports and shared memory that still exist."""
        found = [f"process {p.pid}" for p in self._processes if lives(p)]
        if self._ports:
            in_use = {_port(c) for c in psutil.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
            found += [f"port {host}:{port}" for host, port in sorted(self._ports & in_use)]
        return found + [f"shared memory {name}" for name in sorted(self._segments & segments())]

    def wait_gone(self, timeout_s: float) -> tuple[float, list[str]]:
        """Wait until nothing is left; returns how many seconds this took, and what is left after the timeout."""
        began = time.monotonic()
        while (left := self.left()) and time.monotonic() < began + timeout_s:
            time.sleep(0.01)
        return time.monotonic() - began, left


def started_by(launcher: int) -> list[psutil.Process]:
    """The roles whose command line names the launcher with pid `launcher`.

    Looking for its children is not enough: a role that the launcher forked while it died has another parent.
    """
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if _ROLE in words and words[words.index(_ROLE) + 1 :][:1] == [str(launcher)]:
            found.append(process)
    return found


def segments() -> frozenset[str]:
    """The names of the shared memory of Paceline on this machine."""
    return frozenset(p.name for p in _SHM.glob("paceline*")) if _SHM.is_dir() else frozenset()


def lives(process: psutil.Process) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def listening(processes: Iterable[psutil.Process]) -> set[tuple[str, int]]:
    """The addresses and TCP ports at which the processes listen."""
    found = set()
    for process in processes:
        try:
            found |= {_port(c) for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return found


def _port(connection: Any) -> tuple[str, int]:
    return connection.laddr.ip, connection.laddr.port
