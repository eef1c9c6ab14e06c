"""A process that has loaded torch once and forks roles from itself, for which an engine asks it.

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

ROOM = 2048
"""Bytes that this process's command line is padded with, for those of the roles."""

_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<II?")  # who will be born, said by its parent; who was, said by itself; that it is well


class Birth(msgspec.Struct, frozen=True):
    """What a role is started with, as the system has it: bytes. Its output goes to the file that is sent along."""

    parent: int
    arguments: tuple[bytes, ...]
    env: dict[bytes, bytes]
    cwd: bytes
    title: bytes


# ---------------------------------------------------------------- the engine's side


class Asked:
    """A role that is being forked. It answers by a pipe of its own, of which nobody else keeps the end."""

    def __init__(self, sock: socket.socket, birth: Birth, output: int) -> None:
        """Ask for it.

        Raises:
            OSError: there is nobody any more who could.
        """
        body = msgspec.msgpack.encode(birth)
        reading, writing = os.pipe()
        self._pipe = os.fdopen(reading, "rb", buffering=0)
        self._said = b""
        try:
            socket.send_fds(sock, [_LENGTH.pack(len(body))], [output, writing])
            sock.sendall(body)
        except BaseException:
            self._pipe.close()
            raise
        finally:
            os.close(writing)

    def hear(self, patience_s: float) -> int:
        """Its process number; 0 if nothing came of it.

        Raises:
            TimeoutError: it takes too long.
        """
        while len(self._said) < _ANSWER.size:
            if not select.select([self._pipe], [], [], patience_s)[0]:
                raise TimeoutError(f"no role was forked for {patience_s:.0f} s")
            more = self._pipe.read(_ANSWER.size - len(self._said))
            if not more:
                self._end()
                return 0
            self._said += more
        self._pipe.close()
        return int(_ANSWER.unpack(self._said)[1])

    def undo(self) -> None:
        """Nobody wants it any more, and the nursery has ended: whatever was born ends as well."""
        with contextlib.suppress(TimeoutError):
            self.hear(1.0)
        self._end()

    def _end(self) -> None:
        self._pipe.close()
        if len(self._said) >= _LENGTH.size:
            pid = _LENGTH.unpack(self._said[: _LENGTH.size])[0]
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:  # else the number may be somebody else's by now
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


def _heard(sock: socket.socket) -> tuple[Birth, int, int] | None:
    header, files, _, _ = socket.recv_fds(sock, _LENGTH.size, 2)
    if not header:
        return None
    header += _exactly(sock, _LENGTH.size - len(header))
    body = _exactly(sock, _LENGTH.unpack(header)[0])
    output, answer = files
    return msgspec.msgpack.decode(body, type=Birth), output, answer


def _born(sock: socket.socket) -> Birth | None:
    """Fork whatever is asked for. Returns in each new role with what it is; in this process None, at the end."""
    while (asked := _heard(sock)) is not None:
        birth, output, answer = asked
        if birth.arguments[1] == b"worker":
            _load_for_training()
        with contextlib.suppress(OSError):  # no room for another process: the engine hears of it by the pipe's end
            between = os.fork()
            if between == 0:
                sock.close()
                _leave_behind(answer)
                return _become(birth, output, answer)
            os.waitpid(between, 0)
        os.close(output)
        os.close(answer)
    return None


def _load_for_training() -> None:
    """What torch loads when the first optimizer is made: two seconds of a core, in every worker that is started.

    Servers do without: those that are started before the first worker do not wait for it.
    """
    if "torch._dynamo" not in sys.modules:
        with contextlib.suppress(Exception):  # the script of a worker that needs it will tell why it cannot be loaded
            import torch._dynamo  # noqa: F401
        _freeze()


def _freeze() -> None:
    """Or the first collection of every role would copy all that was imported."""
    gc.collect()
    gc.freeze()


def _leave_behind(answer: int) -> None:
    """Fork once more, tell who it is, and end. Returns in the new process when its parent is gone.

    The engine knows the number before the new process falls to it: one that is killed at once is waited for, too.
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


def _become(birth: Birth, output: int, answer: int) -> Birth:
    """An orphan falls to the engine, which has said that it takes such children."""
    try:
        os.write(answer, _LENGTH.pack(os.getpid()))
        if os.getppid() != birth.parent:
            os._exit(1)  # somebody else has adopted it
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        os.chdir(birth.cwd)
        os.environb.clear()
        os.environb.update(birth.env)
        if not sys.flags.safe_path:
            sys.path[0] = os.fsdecode(birth.cwd)
        _entitle(birth.title)
        _reseed()
        os.write(answer, b"\1")
        os.close(answer)
    except BaseException:
        os._exit(1)
    return birth


def _entitle(title: bytes) -> None:
    """Have lists of processes show `title` as the command line of this one, as setproctitle(3) does it."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), counted from the third field
    # What the kernel shows ends at the first zero if the last byte is not one.
    shown = title[: end - start - 2].ljust(end - start - 1, b"\0") + b"."
    ctypes.memmove(start, shown, end - start)


def _reseed() -> None:
    """What drew its seed from the system at its import must not be equal in two processes; `random` sees to itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def main(argv: list[str]) -> int:
    """Entry point. `argv` is: parent pid, number of the inherited socket, padding."""
    die_with_parent(int(argv[0]))
    _entitle(os.fsencode(f"{sys.executable} -m paceline.runtime.fork_server {argv[0]}"))  # without the padding
    import torch  # noqa: F401

    import paceline.server.service
    import paceline.worker.job  # noqa: F401
    from paceline.runtime import role_process, script  # noqa: F401

    _freeze()
    with socket.socket(fileno=int(argv[1])) as sock:
        birth = _born(sock)
    return 0 if birth is None else role_process.main([os.fsdecode(word) for word in birth.arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
