"""The fork server: a process that has loaded torch, and forks the process of a role at each request of an engine.

Loading torch takes more than a second of a core; a fork takes milliseconds. A role forked here is an ordinary process:
it is a child of the engine (not of the fork server), leads its own session (see setsid(2)), and shows its own command
line. The fork server itself only imports: it has no port, no thread of Paceline, and no state of a run.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from paceline.orphans import die_with_parent

PADDING = 2048
"""Extra bytes in the command line of the fork server, so that a forked role has space to write its own over it."""

_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<II?")  # the pid as the parent of the role sends it, the pid that the role sends, "ready"


class ForkRequest(msgspec.Struct, frozen=True):
    """How to start a role. Texts are bytes, as in the system. Two files for its output are sent with the request.

    With `spare`, the new process is a copy of the fork server; its socket is sent instead of files.
    """

    parent: int
    arguments: tuple[bytes, ...] = ()
    env: dict[bytes, bytes] = {}
    cwd: bytes = b""
    title: bytes = b""
    scripted: bool = False
    spare: bool = False


# ---------------------------------------------------------------- the engine's side


class Forking:
    """A role, or a spare, that is being forked. It sends its pid through a pipe.

    Engine and fork server close their copies of the writing end. So if the fork fails, the engine reads the end of the
    pipe and does not wait.
    """

    def __init__(self, sock: socket.socket, request: ForkRequest, handles: Sequence[int]) -> None:
        """Send `request` to the fork server, with file descriptors: for the role's stdout and stderr, or a socket.

        Raises:
            OSError: the fork server has ended.
        """
        body = msgspec.msgpack.encode(request)
        reading, writing = os.pipe()
        self._pipe = os.fdopen(reading, "rb", buffering=0)
        self._answer = b""
        try:
            socket.send_fds(sock, [_LENGTH.pack(len(body))], [*handles, writing])
            sock.sendall(body)
        except BaseException:
            self._pipe.close()
            raise
        finally:
            os.close(writing)

    def wait(self, patience_s: float) -> int:
        """Wait for the role's pid; 0 if the role was not forked.

        Raises:
            TimeoutError: no answer arrived for `patience_s`.
        """
        while len(self._answer) < _ANSWER.size:
            if not select.select([self._pipe], [], [], patience_s)[0]:
                raise TimeoutError(f"the fork server has not forked the role within {patience_s:.0f} s")
            more = self._pipe.read(_ANSWER.size - len(self._answer))
            if not more:
                self._end()
                return 0
            self._answer += more
        self._pipe.close()
        return int(_ANSWER.unpack(self._answer)[1])

    def undo(self) -> None:
        """Kill the role if it was forked: the fork server has ended, so the role may be incomplete."""
        with contextlib.suppress(TimeoutError):
            self.wait(1.0)
        self._end()

    def _end(self) -> None:
        self._pipe.close()
        if len(self._answer) >= _LENGTH.size:
            pid = _LENGTH.unpack(self._answer[: _LENGTH.size])[0]
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:  # else it has ended, and another process may have its pid
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def _exactly(sock: socket.socket, nbytes: int) -> bytes:
    found = b""
    while len(found) < nbytes:
        more = sock.recv(nbytes - len(found))
        if not more:
            raise ConnectionResetError("the engine closed the socket in the middle of a request")
        found += more
    return found


# ---------------------------------------------------------------- the fork server's side


def _receive(sock: socket.socket) -> tuple[ForkRequest, list[int], int] | None:
    header, files, _, _ = socket.recv_fds(sock, _LENGTH.size, 3)
    if not header:
        return None
    header += _exactly(sock, _LENGTH.size - len(header))
    body = _exactly(sock, _LENGTH.unpack(header)[0])
    *handles, answer = files
    return msgspec.msgpack.decode(body, type=ForkRequest), handles, answer


def _serve(sock: socket.socket) -> ForkRequest | None:
    """Fork a process for each request. Returns the request in a new role; None in the fork server, at its end.

    A new spare (a copy of the fork server) does not return: it serves requests from its own socket.
    """
    while (received := _receive(sock)) is not None:
        request, handles, answer = received
        if request.scripted:
            _load_for_training()
        with contextlib.suppress(OSError):  # the system refuses a new process: the engine sees that the pipe is closed
            between = os.fork()
            if between == 0:
                sock.close()
                _fork_orphan(answer)
                if not request.spare:
                    return _become(request, handles, answer)
                sock = _become_spare(request, handles[0], answer)
                continue
            os.waitpid(between, 0)
        for descriptor in (*handles, answer):
            os.close(descriptor)
    return None


def _load_for_training() -> None:
    """Load what torch loads for the first optimizer. In each worker it would take two seconds of a core.

    Servers do not need it, so servers that start before the first worker do not wait for it.
    """
    if "torch._dynamo" not in sys.modules:
        with contextlib.suppress(Exception):  # a script that needs it raises the error itself
            import torch._dynamo  # noqa: F401
        _freeze()


def _freeze() -> None:
    """Exclude all imported objects from garbage collection, which would copy their memory in every role."""
    gc.collect()
    gc.freeze()


def _fork_orphan(answer: int) -> None:
    """Fork again, send the pid of the new process to the engine, and end. Returns in the new process, an orphan.

    The engine inherits orphans. It knows the pid before, so it waits for the process even if that is killed at once.
    """
    between = os.getpid()
    try:
        if (child := os.fork()) != 0:
            os.write(answer, _LENGTH.pack(child))
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == between:
        time.sleep(0.0005)


def _become_spare(request: ForkRequest, handle: int, answer: int) -> socket.socket:
    """Make this process a fork server of its own. Returns its socket."""
    try:
        os.write(answer, _LENGTH.pack(os.getpid()))
        die_with_parent(request.parent)
        os.setsid()
        sock = socket.socket(fileno=handle)
        os.write(answer, b"\1")
        os.close(answer)
    except BaseException:
        os._exit(1)
    return sock


def _become(request: ForkRequest, output: Sequence[int], answer: int) -> ForkRequest:
    """Make this process the role of `request`: its session, output, directory, environment and command line."""
    try:
        os.write(answer, _LENGTH.pack(os.getpid()))
        if os.getppid() != request.parent:
            os._exit(1)  # another process than the engine has inherited this one
        os.setsid()
        for descriptor, standard in zip(output, (1, 2), strict=True):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os.chdir(request.cwd)
        os.environb.clear()
        os.environb.update(request.env)
        if not sys.flags.safe_path:
            sys.path[0] = os.fsdecode(request.cwd)
        _set_title(request.title)
        _reseed()
        os.write(answer, b"\1")
        os.close(answer)
    except BaseException:
        os._exit(1)
    return request


def _set_title(title: bytes) -> None:
    """Make `title` the command line of this process in lists of processes, as setproctitle(3) does."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), counted from the third field
    # If the last byte is not zero, the kernel shows the text up to the first zero.
    shown = title[: end - start - 2].ljust(end - start - 1, b"\0") + b"."
    ctypes.memmove(start, shown, end - start)


def _reseed() -> None:
    """Seed numpy anew, which was seeded when it was imported. `random` does that by itself after a fork."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def end_fork(code: int) -> NoReturn:
    """End this forked process as `multiprocessing` ends one: threads end, exit functions run, output is flushed.

    The interpreter does not then free each object: that would copy all memory which is shared with the fork server.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def main(argv: list[str]) -> int:
    """Run the fork server. `argv` is: the parent's pid, the descriptor of the inherited socket, "1" or "0", padding.

    It sends one byte to the engine when it has loaded torch; with "1" it first loads what training needs, too.
    """
    die_with_parent(int(argv[0]))
    _set_title(os.fsencode(f"{sys.executable} -m paceline.runtime.fork_server {argv[0]}"))  # without the padding
    import torch  # noqa: F401

    import paceline.coordinator.service
    import paceline.coordinator.store
    import paceline.server.service
    import paceline.worker.job  # noqa: F401
    from paceline.runtime import current_job, role_process, script  # noqa: F401

    if argv[2] == "1":
        _load_for_training()
    _freeze()
    with socket.socket(fileno=int(argv[1])) as sock:
        sock.sendall(b"\1")
        request = _serve(sock)
    if request is not None:
        end_fork(role_process.main([os.fsdecode(word) for word in request.arguments]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
