"""How processes of roles come into being: forked by a nursery where that can be, started by themselves elsewhere."""

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

from paceline.runtime.fork_server import ROOM, Asked, Birth

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_PATIENCE_S = 60.0
_DYING_S = 0.5
_LOADED_BY = (
    *("LD_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH", "PYTORCH"),
    *("CUDA", "HIP_", "ROCR_", "MALLOC_", "GLIBC_TUNABLES", "TZ", "LC_", "LANG"),
)
"""Variables that are read while libraries are loaded, by how they begin: a fork would not heed them any more."""


class Nursery:
    """This process's side of a `paceline.runtime.fork_server`. Without one, or after its end, `bear` returns None."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: dict[str, str] = {}

    def open(self) -> None:
        """Start it; it loads what it needs while this process goes on. Linux only."""
        if sys.platform != "linux" or not _adoption.begin():
            return
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        mine, theirs = socket.socketpair()
        mine.settimeout(_PATIENCE_S)
        number = theirs.fileno()
        command = [sys.executable, "-m", "paceline.runtime.fork_server", str(os.getpid()), str(number), "." * ROOM]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # what it cannot load, a role that is started cannot either, and says so
                    env=env,
                    start_new_session=True,
                    pass_fds=[number],
                )
        except OSError:
            mine.close()
            _adoption.end()
            return
        self._sock, self._loaded = mine, _heeded(env)

    def bear(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path | None, output: IO[bytes]) -> int | None:
        """Fork a role; returns its process number, None if it must be started in the ordinary way."""
        if self._sock is None or _heeded(env) != self._loaded:
            return None
        words = (str(os.getpid()), *arguments)
        title = " ".join((sys.executable, "-m", "paceline.runtime.role_process", *words))
        asked: Asked | None = None
        try:
            birth = Birth(
                os.getpid(),
                tuple(map(os.fsencode, words)),
                {os.fsencode(key): os.fsencode(value) for key, value in env.items()},
                os.fsencode(cwd or Path.cwd()),
                os.fsencode(title),
            )
            asked = Asked(self._sock, birth, output.fileno())
            return asked.hear(_PATIENCE_S) or None
        except BaseException as error:
            self.close()
            if asked is not None:
                asked.undo()
            if not isinstance(error, OSError):
                raise
            return None

    def close(self) -> None:
        """No more births. Roles that were born live on; those that are only half born end, and are waited for."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            if self._process.returncode is None:  # not waited for yet, it still owns its number
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            bury(self._process.pid)
            self._process = None
            _adoption.end()


def bury(group: int) -> None:
    """Wait for those who were killed in a group of processes: this process inherits them while it has a nursery."""
    deadline = time.monotonic() + _DYING_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


class _Adoption:
    """Whether processes whose parent has ended become children of this one, if it is above them: as long as it must."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def begin(self) -> bool:
        """From now on; False if that cannot be."""
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
        """As it was before, once nobody needs it."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, self._before, 0, 0, 0)


_adoption = _Adoption()


def _heeded(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_LOADED_BY)}
