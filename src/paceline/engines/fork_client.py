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
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.runtime.fork_server import PADDING, Forking, ForkRequest

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_PATIENCE_S = 60.0  # for the first roles, which wait until the server has loaded torch
_FORK_S = 5.0  # for a fork by a server that has loaded everything: it takes milliseconds
_SPARE_S = 1.0  # between two attempts to make a spare
_ENDING_S = 0.1  # for a server that may have been killed while it forked
_REAP_S = 0.5
_PREFIXES = (
    *("LD_", "PYTHON", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH", "PYTORCH"),
    *("CUDA", "HIP_", "ROCR_", "MALLOC_", "GLIBC_TUNABLES", "TZ", "LC_", "LANG"),
)
"""Prefixes of environment variables that libraries read when they load: a new value has no effect in a fork."""


@dataclass(frozen=True, slots=True)
class ServerEnd:
    """How a fork server ended. `code` is its exit code, negative for a signal; None if it did not answer any more.

    `was_ready` says that it had loaded torch; `replaced` says that its spare has taken over.
    """

    code: int | None
    was_ready: bool
    replaced: bool


class _Server:
    """A process that forks, and the engine's end of its socket. It leads a process group."""

    def __init__(self, pid: int, sock: socket.socket, *, ready: bool, trains: bool) -> None:
        self.pid = pid
        self.sock = sock
        self.ready = ready
        self.trains = trains  # it has loaded what a scripted role needs, so a fork takes milliseconds
        self._code: int | None = None

    @property
    def patience_s(self) -> float:
        return _FORK_S if self.trains else _PATIENCE_S

    def listen(self) -> bool:
        """Take the server's word that it is ready; False if its socket or its process has ended."""
        try:
            word = self.sock.recv(1)
        except BlockingIOError:
            return self._poll() is None
        except OSError:
            return False
        self.ready |= bool(word)
        return bool(word)

    def fork(self, request: ForkRequest, handles: Sequence[int]) -> int:
        """Send a request and wait for the new process; returns its pid, 0 if there is none.

        Raises:
            OSError: the server has ended, or did not answer in time (TimeoutError).
        """
        forking: Forking | None = None
        self.sock.settimeout(self.patience_s)
        try:
            forking = Forking(self.sock, request, handles)
            pid = forking.wait(self.patience_s)
        except BaseException:
            self.end()
            if forking is not None:
                forking.undo()
            raise
        self.sock.settimeout(0.0)
        self.trains |= request.scripted and pid > 0
        return pid

    def end(self) -> int:
        """Kill the server and every process that it is just forking; returns the exit code of the server."""
        self.sock.close()
        if self._poll() is None:  # its process id is not reused before `waitpid`
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._wait(0)
        reap_group(self.pid)
        assert self._code is not None
        return self._code

    def _poll(self) -> int | None:
        if self._code is None:
            self._wait(os.WNOHANG)
        return self._code

    def _wait(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self._code = os.waitstatus_to_exitcode(status)


class ForkClient:
    """Starts and uses a `paceline.runtime.fork_server`. While none is ready, `fork` returns None.

    Only the first server is waited for: all roles need it, and nothing else is to be done meanwhile. Once it has loaded
    everything, it forks a spare, which costs little memory and takes over at once if the server ends. If both have
    ended, the next server loads everything anew; roles are started by their own commands until it is ready.
    """

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._spare: _Server | None = None
        self._loaded: dict[str, str] = {}
        self._opened = 0
        self._inherits = False
        self._end: ServerEnd | None = None
        self._next_spare = 0.0

    def open(self) -> None:
        """Start the server and return at once; the server loads torch meanwhile. Does nothing outside of Linux."""
        if sys.platform != "linux" or not (self._inherits or _subreaper.begin()):
            return
        self._inherits = True
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        mine, theirs = _pair()
        number, replaces = theirs.fileno(), self._opened > 0
        module = [sys.executable, "-m", "paceline.runtime.fork_server"]
        command = [*module, str(os.getpid()), str(number), str(int(replaces)), "." * PADDING]
        try:
            with theirs:
                process = subprocess.Popen(
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
            return
        process.returncode = 0  # so that Popen does not wait for the process: `_Server` does, by its id
        self._opened += 1
        self._server, self._loaded = _Server(process.pid, mine, ready=False, trains=replaces), _read_on_load(env)

    @property
    def ready(self) -> bool:
        """Whether a server has loaded torch and waits for requests."""
        self._listen()
        return self._server is not None and self._server.ready

    def ended(self) -> ServerEnd | None:
        """How a server ended, if one ended since the last call and `close` did not end it. Also makes the spare."""
        self._listen()
        if self._spare is not None and not self._spare.listen():
            self._spare.end()
            self._spare = None
        if self._spare is None and self._server is not None and self._server.trains and self._server.ready:
            self._make_spare()
        end, self._end = self._end, None
        return end

    def fork(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        cwd: Path | None,
        output: Sequence[IO[bytes]],
        *,
        scripted: bool,
        light: bool = False,
    ) -> int | None:
        """Fork a role and return its process id, or None if the caller must start the role by its own command.

        `arguments` are those of `paceline.runtime.role_process`; `output` are the files for its stdout and its stderr.
        Before it forks a `scripted` role, the server loads what training needs. A `light` role uses none of the
        libraries, so their environment variables may differ.
        """
        if not light and _read_on_load(env) != self._loaded:
            return None
        title = " ".join((sys.executable, "-m", "paceline.runtime.role_process", *arguments))
        request = ForkRequest(
            os.getpid(),
            tuple(map(os.fsencode, arguments)),
            {os.fsencode(key): os.fsencode(value) for key, value in env.items()},
            os.fsencode(cwd or Path.cwd()),
            os.fsencode(title),
            scripted,
        )
        while True:  # the spare is asked if the server has ended
            self._listen()
            server = self._server
            if server is None or not (server.ready or (self._opened == 1 and not light)):
                return None
            try:
                if pid := server.fork(request, [file.fileno() for file in output]):
                    return pid
                if not self._is_replaced(server):
                    return None  # it lives: the system or the role refused
            except OSError as error:
                self._lose(answers=not isinstance(error, TimeoutError))
            except BaseException:
                self._lose()
                raise

    def close(self) -> None:
        """End the servers. Roles that they have forked continue; a role that is just forked ends too."""
        for server in (self._server, self._spare):
            if server is not None:
                server.end()
        self._server = self._spare = None
        if self._inherits:
            self._inherits = False
            _subreaper.end()

    def _is_replaced(self, server: _Server) -> bool:
        """Whether `server` has ended. A server that was just killed closes its files a moment before it has ended."""
        deadline = time.monotonic() + _ENDING_S
        while self._server is server and time.monotonic() < deadline:
            self._listen()
            time.sleep(0.005)
        return self._server is not server

    def _listen(self) -> None:
        if self._server is not None and not self._server.listen():
            self._lose()

    def _lose(self, *, answers: bool = True) -> None:
        """End a server that has ended or does not answer; its spare takes over. `ended` tells it."""
        server, self._server, self._spare = self._server, self._spare, None
        if server is not None:
            code = server.end()
            self._end = ServerEnd(code if answers else None, server.ready, self._server is not None)

    def _make_spare(self) -> None:
        """Have the server fork a copy of itself. If the system refuses a new process, try again after a while."""
        assert self._server is not None
        if time.monotonic() < self._next_spare:
            return
        self._next_spare = time.monotonic() + _SPARE_S
        mine, theirs = _pair()
        try:
            with theirs:
                pid = self._server.fork(ForkRequest(os.getpid(), spare=True), [theirs.fileno()])
        except BaseException as error:
            mine.close()
            self._lose(answers=not isinstance(error, TimeoutError))
            if not isinstance(error, OSError):
                raise
            return
        if pid:
            self._spare = _Server(pid, mine, ready=True, trains=True)
        else:
            mine.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets: one for the engine, which does not wait at it, and one for a fork server."""
    mine, theirs = socket.socketpair()
    mine.setblocking(False)
    return mine, theirs


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
