"""The launcher's side of the fork server: a process that loads torch once and then forks the roles."""

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
"""Prefixes of environment variables that libraries read when they load: a new value has no effect in a fork."""


class ForkClient:
    """Starts and uses one `paceline.runtime.fork_server`. While the server does not run, `fork` returns None."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: dict[str, str] = {}

    def open(self) -> None:
        """Start the server and return at once; the server loads torch meanwhile. Does nothing outside of Linux."""
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
                    stderr=subprocess.DEVNULL,  # if torch does not load, the role's own command shows the same error
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
        """Fork a role and return its process id, or None if the caller must start the role by its own command.

        `arguments` are those of `paceline.runtime.role_process`. Before it forks a `scripted` role, the server loads
        what training needs.
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
        """End the server. Roles that it has forked continue; a role that it is just forking ends too."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            if self._process.returncode is None:  # its process id is not reused before `wait`
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            reap_group(self._process.pid)
            self._process = None
            _subreaper.end()


def reap_group(group: int) -> None:
    """Wait for the killed processes of a process group, which this process inherits while it has a fork server."""
    deadline = time.monotonic() + _REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


class _Subreaper:
    """Makes this process inherit the orphans among its descendants while it has at least one open fork client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def begin(self) -> bool:
        """Count one more client; False if the system does not let this process inherit orphans."""
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
        """Count one client fewer; after the last one, restore the setting that the process had before."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, self._before, 0, 0, 0)


_subreaper = _Subreaper()


def _read_on_load(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_PREFIXES)}
