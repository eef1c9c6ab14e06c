"""How processes of roles come into being: forked by a nursery where that can be, started by themselves elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from paceline.runtime.nursery import ROOM, Birth, ask

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 60.0
_LOADED_BY = ("LD_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "TORCH", "PYTORCH", "CUDA", "ATEN_")
"""Variables that are read while libraries are loaded, by how they begin: a fork would not heed them any more."""


class Nursery:
    """This process's side of a `paceline.runtime.nursery`. Without one, or after its end, `bear` returns None."""

    def __init__(self) -> None:
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start it; it loads what it needs while this process goes on. Linux only."""
        if sys.platform != "linux" or not _adopt(True):
            return
        mine, theirs = socket.socketpair()
        mine.settimeout(_PATIENCE_S)
        number = theirs.fileno()
        command = [sys.executable, "-m", "paceline.runtime.nursery", str(os.getpid()), str(number), "." * ROOM]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what it cannot load, a role that is started cannot either, and says so
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                pass_fds=[number],
            )
        self._sock = mine

    def bear(self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path | None, output: IO[bytes]) -> int | None:
        """Fork a role; returns its process number, None if it must be started in the ordinary way."""
        if self._sock is None or _loads_otherwise(env):
            return None
        words = (str(os.getpid()), *arguments)
        title = " ".join((sys.executable, "-m", "paceline.runtime.process", *words))
        birth = Birth(os.getpid(), words, dict(env), str(cwd or Path.cwd()), title)
        try:
            return ask(self._sock, birth, output.fileno())
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """No more births. Roles that were born live on."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None
            _adopt(False)


def _adopt(yes: bool) -> bool:
    """Whether processes whose parent has ended become children of this one, if it is above them."""
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) == 0)


def _loads_otherwise(env: Mapping[str, str]) -> bool:
    ours = {k: v for k, v in os.environ.items() if k.startswith(_LOADED_BY)}
    theirs = {k: v for k, v in env.items() if k.startswith(_LOADED_BY)}
    return {**ours, "PYTHONUNBUFFERED": "1"} != theirs
