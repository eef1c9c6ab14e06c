"""Forks the commands of real runs from a process that has loaded torch (`tests.kit.warm_server`).

Loading torch and what an optimizer needs takes more processor time than most of the runs of the tests.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from tests.kit.warm_server import CODE, LENGTH, Request

from paceline.engines.fork_client import _read_on_load
from paceline.runtime.fork_server import PADDING

ROOT = Path(__file__).resolve().parents[2]
START_S = 100.0


class WarmProcess:
    """A forked command, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, code: int) -> None:
        """`code` is the pipe on which the exit code arrives."""
        self.pid = pid
        self.returncode: int | None = None
        self.cpu_s = 0.0
        """The processor time of the command and of the children that it waited for, once it has ended."""
        self._code = os.fdopen(code, "rb", buffering=0)

    def fileno(self) -> int:
        """What is readable once the command has ended; valid until its exit code is read."""
        return self._code.fileno()

    def poll(self) -> int | None:
        """The exit code; None while the command runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code."""
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._code], [], [], timeout_s)[0]:
            with self._code as pipe:
                answer = pipe.read(CODE.size)
            assert answer, "the warm server has ended"
            self.returncode, self.cpu_s = CODE.unpack(answer)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; does nothing if the command has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmServer:
    """One `tests.kit.warm_server`. It is no child of this process, and ends with it or at `close`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._loaded = _read_on_load(env)
        self._sock, theirs = socket.socketpair()
        self._sock.settimeout(START_S)
        with theirs:
            number = theirs.fileno()
            subprocess.run(
                [sys.executable, "-m", "tests.kit.warm_server", str(number), "." * PADDING],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                check=True,
            )
        self.pid = self._number()

    def _number(self) -> int:
        answer = self._sock.recv(LENGTH.size, socket.MSG_WAITALL)
        assert len(answer) == LENGTH.size, "the warm server has ended"
        return int(LENGTH.unpack(answer)[0])

    def can_start(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether `command` runs a script or a module of Paceline, and torch would load the same way with `env`."""
        if command[0] != sys.executable or _read_on_load(env) != self._loaded:
            return False
        return command[2].partition(".")[0] == "paceline" if command[1] == "-m" else not command[1].startswith("-")

    def start(
        self, command: Sequence[str], cwd: Path, env: Mapping[str, str], output: int, errors: int | None = None
    ) -> WarmProcess:
        """Fork `command`; it prints to the file descriptors `output` and `errors` (None: both to `output`)."""
        bytes_env = {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
        body = msgspec.msgpack.encode(Request(tuple(command), bytes_env, os.fsencode(cwd)))
        reading, writing = os.pipe()
        try:
            files = [output, output if errors is None else errors, writing]
            socket.send_fds(self._sock, [LENGTH.pack(len(body))], files)
            self._sock.sendall(body)
            return WarmProcess(self._number(), reading)
        finally:
            os.close(writing)

    def close(self) -> None:
        """End the server, and wait until it has ended."""
        self._sock.close()
        deadline = time.monotonic() + 5.0
        while Path(f"/proc/{self.pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
