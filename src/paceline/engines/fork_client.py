"""The engine's side of the fork server, which forks roles from a process that has loaded torch once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from paceline.runtime.fork_server import PADDING, Forking, ForkRequest

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_PATIENCE_S = 60.0
_REAP_S = 0.5
_PREFIXES = (
    *("LD_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH", "PYTORCH"),
    *("CUDA", "HIP_", "ROCR_", "MALLOC_", "GLIBC_TUNABLES", "TZ", "LC_", "LANG"),
)
"""Prefixes of variables that libraries read when they load: in a fork they would have no effect."""


class ForkClient:
    """One `paceline.runtime.fork_server`. Before `open` and after the server's end, `fork` returns None."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: dict[str, str] = {}

    def open(self) -> None:
        """Start it; it loads what it needs while this process goes on. Linux only."""
        if sys.platform != "linux" or not _subreaper.begin():
            return
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        mine, theirs = socket.socketpair()
        mine.settimeout(_PATIENCE_S)
        number = theirs.fileno()
        command = [sys.executable, "-m", "paceline.runtime.fork_server", str(os.getpid()), str(number), "." * PADDING]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a role started by its own command fails in the same way, and says so
                    env=env,
                    start_new_session=True,
                    pass_fds=[number],
                )
        except OSError:
            mine.close()
            _subreaper.end()
            return
        self._sock, self._loaded = mine, _read_on_load(env)

    def fork(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path | None, output: IO[bytes], *, scripted: bool
    ) -> int | None:
        """Fork a role; returns its process number, None if it must be started by a command of its own.

        `arguments` are those of `paceline.runtime.role_process`. For a `scripted` role the server first loads what
        training needs.
        """
        if self._sock is None or _read_on_load(env) != self._loaded:
            return None
        title = " ".join((sys.executable, "-m", "paceline.runtime.role_process", *arguments))
        forking: Forking | None = None
        try:
            request = ForkRequest(
                os.getpid(),
                tuple(map(os.fsencode, arguments)),
                {os.fsencode(key): os.fsencode(value) for key, value in env.items()},
                os.fsencode(cwd or Path.cwd()),
                os.fsencode(title),
                scripted,
            )
            forking = Forking(self._sock, request, output.fileno())
            return forking.wait(_PATIENCE_S) or None
        except BaseException as error:
            self.close()
            if forking is not None:
                forking.undo()
            if not isinstance(error, OSError):
                raise
            return None

    def close(self) -> None:
        """End the server. Forked roles live on; a role that is being forked ends, and is waited for."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            if self._process.returncode is None:  # until it is waited for it owns its number
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            reap_group(self._process.pid)
            self._process = None
            _subreaper.end()


def reap_group(group: int) -> None:
    """Wait for the killed processes of a group: while this process has a fork server, it inherits them."""
    deadline = time.monotonic() + _REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


class _Subreaper:
    """Makes this process inherit orphans among its descendants, as long as any fork client of it needs that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def begin(self) -> bool:
        """One more client needs it; False if the system refuses."""
        with self._lock:
            if self._users == 0:
                libc, before = ctypes.CDLL(None), ctypes.c_int(0)
                libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
                if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
                    return False
                self._before = before.value
            self._users += 1
            return True

    def end(self) -> None:
        """One client fewer needs it; after the last one the process is as it was before."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, self._before, 0, 0, 0)


_subreaper = _Subreaper()


def _read_on_load(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_PREFIXES)}
