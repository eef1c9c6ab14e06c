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
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
from tests.kit.warm_server import CODE, LENGTH, Request

from paceline.engines.fork_client import _read_on_load
from paceline.runtime.fork_server import PADDING
from paceline.testing import launch

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


class Forker:
    """The socket of a process that forks commands: `tests.kit.warm_server`, or the helper of a campaign."""

    def __init__(self, sock: socket.socket, env: Mapping[str, str]) -> None:
        """The process has loaded torch with `env`."""
        self._sock = sock
        self._loaded = _read_on_load(env)

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
        self,
        command: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        output: int,
        errors: int | None = None,
        *,
        bound: bool = False,
    ) -> WarmProcess:
        """Fork `command`, in the network of this thread.

        It prints to the file descriptors `output` and `errors` (None: both to `output`). A `bound` command dies with
        the process that forks it, and leads a session.
        """
        bytes_env = {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
        body = msgspec.msgpack.encode(Request(tuple(command), bytes_env, os.fsencode(cwd), bound))
        reading, writing = os.pipe()
        try:
            with open("/proc/thread-self/ns/net", "rb") as network:
                files = [output, output if errors is None else errors, writing, network.fileno()]
                socket.send_fds(self._sock, [LENGTH.pack(len(body))], files)
            self._sock.sendall(body)
            return WarmProcess(self._number(), reading)
        finally:
            os.close(writing)


class WarmServer(Forker):
    """One `tests.kit.warm_server`. It is no child of this process, and ends with it or at `close`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        mine, theirs = socket.socketpair()
        super().__init__(mine, env)
        mine.settimeout(START_S)
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

    def close(self) -> None:
        """End the server, and wait until it has ended."""
        self._sock.close()
        deadline = time.monotonic() + 5.0
        while _runs(self.pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process runs: it may also have ended, and nobody has waited for it yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def forking_subprocess(server: Forker) -> types.SimpleNamespace:
    """The module `subprocess` for `paceline.testing.launch`: `Launched` forks its commands."""

    def popen(words: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **named: Any) -> Any:
        command = [sys.executable, "-m", "paceline.cli.main", *words[4:]]
        if words[2] != launch._BOUND or not server.can_start(command, env):
            return subprocess.Popen(words, stdout=stdout, env=env, **named)
        return server.start(command, Path.cwd(), env, stdout.fileno(), bound=True)

    return types.SimpleNamespace(**{**vars(subprocess), "Popen": popen})
