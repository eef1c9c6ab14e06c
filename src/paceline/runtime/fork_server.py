"""A process that has loaded torch once and forks roles from itself at the request of an engine.

Loading torch takes more than a second of a core; a fork takes milliseconds. A role forked here is an ordinary process:
it is a child of the engine (not of this process), leads a session of its own, and has the command line that it would
have had. This process itself runs nothing but the imports: it has no port, no thread of ours, and no state of a run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import time

import msgspec

from paceline.orphans import die_with_parent

PADDING = 2048
"""Bytes by which this process's command line is longer than needed: a forked role writes its own in its place."""

_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<II?")  # the role's process number from its parent, the same from the role, that it is ready


class ForkRequest(msgspec.Struct, frozen=True):
    """What a role is started with, as bytes, as the system has it. Its output goes to the file that is sent along."""

    parent: int
    arguments: tuple[bytes, ...]
    env: dict[bytes, bytes]
    cwd: bytes
    title: bytes
    scripted: bool


# ---------------------------------------------------------------- the engine's side


class Forking:
    """A role that is being forked. It answers by a pipe of which no other process keeps the writing end."""

    def __init__(self, sock: socket.socket, request: ForkRequest, output: int) -> None:
        """Send the request.

        Raises:
            OSError: the fork server has ended.
        """
        body = msgspec.msgpack.encode(request)
        reading, writing = os.pipe()
        self._pipe = os.fdopen(reading, "rb", buffering=0)
        self._answer = b""
        try:
            socket.send_fds(sock, [_LENGTH.pack(len(body))], [output, writing])
            sock.sendall(body)
        except BaseException:
            self._pipe.close()
            raise
        finally:
            os.close(writing)

    def wait(self, patience_s: float) -> int:
        """The role's process number; 0 if it was not forked.

        Raises:
            TimeoutError: it takes too long.
        """
        while len(self._answer) < _ANSWER.size:
            if not select.select([self._pipe], [], [], patience_s)[0]:
                raise TimeoutError(f"no role was forked for {patience_s:.0f} s")
            more = self._pipe.read(_ANSWER.size - len(self._answer))
            if not more:
                self._end()
                return 0
            self._answer += more
        self._pipe.close()
        return int(_ANSWER.unpack(self._answer)[1])

    def undo(self) -> None:
        """End the role if it was forked; the fork server has ended."""
        with contextlib.suppress(TimeoutError):
            self.wait(1.0)
        self._end()

    def _end(self) -> None:
        self._pipe.close()
        if len(self._answer) >= _LENGTH.size:
            pid = _LENGTH.unpack(self._answer[: _LENGTH.size])[0]
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:  # else the number may be another process's by now
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def _exactly(sock: socket.socket, nbytes: int) -> bytes:
    found = b""
    while len(found) < nbytes:
        more = sock.recv(nbytes - len(found))
        if not more:
            raise ConnectionResetError("the other side is gone")
        found += more
    return found


# ---------------------------------------------------------------- this process


def _receive(sock: socket.socket) -> tuple[ForkRequest, int, int] | None:
    header, files, _, _ = socket.recv_fds(sock, _LENGTH.size, 2)
    if not header:
        return None
    header += _exactly(sock, _LENGTH.size - len(header))
    body = _exactly(sock, _LENGTH.unpack(header)[0])
    output, answer = files
    return msgspec.msgpack.decode(body, type=ForkRequest), output, answer


def _serve(sock: socket.socket) -> ForkRequest | None:
    """Fork a role for each request. Returns in each forked role with its request, in this process None at the end."""
    while (received := _receive(sock)) is not None:
        request, output, answer = received
        if request.scripted:
            _load_for_training()
        with contextlib.suppress(OSError):  # the system refuses another process: the engine sees the pipe's end
            between = os.fork()
            if between == 0:
                sock.close()
                _fork_orphan(answer)
                return _become(request, output, answer)
            os.waitpid(between, 0)
        os.close(output)
        os.close(answer)
    return None


def _load_for_training() -> None:
    """Load what torch loads when the first optimizer is made: it would take each worker two seconds of a core.

    Servers do without: those that start before the first worker do not wait for it.
    """
    if "torch._dynamo" not in sys.modules:
        with contextlib.suppress(Exception):  # a script that needs it will say why it cannot be loaded
            import torch._dynamo  # noqa: F401
        _freeze()


def _freeze() -> None:
    """Keep the first collection of every role from copying all that was imported."""
    gc.collect()
    gc.freeze()


def _fork_orphan(answer: int) -> None:
    """Fork once more, answer with the new process's number, and end. Returns in the new process, now an orphan.

    The engine knows the number before it inherits the process: it waits also for one that is killed at once.
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


def _become(request: ForkRequest, output: int, answer: int) -> ForkRequest:
    """Take over everything of the request. The engine has inherited this orphan."""
    try:
        os.write(answer, _LENGTH.pack(os.getpid()))
        if os.getppid() != request.parent:
            os._exit(1)  # another process has inherited it
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
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
    """Have lists of processes show `title` as the command line of this one, as setproctitle(3) does it."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), counted from the third field
    # What the kernel shows ends at the first zero if the last byte is not one.
    shown = title[: end - start - 2].ljust(end - start - 1, b"\0") + b"."
    ctypes.memmove(start, shown, end - start)


def _reseed() -> None:
    """Seed again what took its seed from the system when it was imported; `random` does that by itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def main(argv: list[str]) -> int:
    """Entry point. `argv` is: parent pid, number of the inherited socket, padding."""
    die_with_parent(int(argv[0]))
    _set_title(os.fsencode(f"{sys.executable} -m paceline.runtime.fork_server {argv[0]}"))  # without the padding
    import torch  # noqa: F401

    import paceline.server.service
    import paceline.worker.job  # noqa: F401
    from paceline.runtime import current_job, role_process, script  # noqa: F401

    _freeze()
    with socket.socket(fileno=int(argv[1])) as sock:
        request = _serve(sock)
    return 0 if request is None else role_process.main([os.fsdecode(word) for word in request.arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
