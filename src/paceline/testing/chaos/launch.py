"""Starts runs as a user would, by the command line, and ends whatever it started."""

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

# A launcher whose campaign is killed ends too, and with it all roles; and it hears Ctrl-C though a shell that starts
# a campaign in the background would have it ignored.
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
    """The command line of ``paceline WORDS`` as a child of this process."""
    return [sys.executable, "-c", _BOUND, str(os.getpid()), *map(str, words)]


class Launched:
    """One ``paceline`` command that runs in the background. All it prints goes to `out`."""

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
                start_new_session=True,  # Ctrl-C is for the campaign, which ends this in order
            )

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self.process.poll()

    def family(self) -> list[psutil.Process]:
        """This process and all that it started, however deep."""
        try:
            launcher = psutil.Process(self.process.pid)
            return [launcher, *launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, None if it has not ended by then."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End it now, with all that it started."""
        family = self.family()
        if self.code is None:
            self.process.send_signal(signal.SIGINT)
            if self.wait(3.0) is None:
                self.process.kill()
        self.process.wait()
        kill(family)

    def tail(self, lines: int = 5) -> str:
        """The end of what it printed."""
        return "\n".join(self.out.read_text(errors="replace").splitlines()[-lines:])


def finish(words: Sequence[object], out: Path, env: Mapping[str, str], timeout_s: float) -> Launched:
    """Run a command to its end.

    Raises:
        TimeoutError: it did not end by itself; it is ended.
    """
    launched = Launched(words, out, env)
    try:
        if launched.wait(timeout_s) is None:
            raise TimeoutError(f"`paceline {' '.join(launched.words)}` did not end within {timeout_s:.0f} s; see {out}")
    finally:
        launched.end()
    return launched


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to all, at once."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


class Footprint:
    """What a run has on this machine: processes, listening ports and shared memory."""

    def __init__(self, processes: Sequence[psutil.Process], segments_before: frozenset[str]) -> None:
        self._processes = list(processes)
        self._ports = _ports(self._processes)
        self._segments = segments() - segments_before

    def add(self, processes: Iterable[psutil.Process]) -> None:
        """More processes that belong to it."""
        self._processes += processes

    def left(self) -> list[str]:
        """What of it is still there, by name."""
        found = [f"process {p.pid}" for p in self._processes if lives(p)]
        if self._ports:
            listening = {_port(c) for c in psutil.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
            found += [f"port {host}:{port}" for host, port in sorted(self._ports & listening)]
        return found + [f"shared memory {name}" for name in sorted(self._segments & segments())]

    def wait_gone(self, timeout_s: float) -> tuple[float, list[str]]:
        """Seconds until nothing is left, and what is left if that is never."""
        began = time.monotonic()
        while (left := self.left()) and time.monotonic() < began + timeout_s:
            time.sleep(0.01)
        return time.monotonic() - began, left


def started_by(launcher: int) -> list[psutil.Process]:
    """Roles whose command line names that launcher: one that was forked as it died is in nobody's family any more."""
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
    """Shared memory of Paceline on this machine."""
    return frozenset(p.name for p in _SHM.glob("paceline*")) if _SHM.is_dir() else frozenset()


def lives(process: psutil.Process) -> bool:
    """Whether the process runs; one that is dead but not yet waited for does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _ports(processes: Iterable[psutil.Process]) -> set[tuple[str, int]]:
    found = set()
    for process in processes:
        try:
            found |= {_port(c) for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}
        except psutil.Error:
            continue
    return found


def _port(connection: Any) -> tuple[str, int]:
    return connection.laddr.ip, connection.laddr.port
