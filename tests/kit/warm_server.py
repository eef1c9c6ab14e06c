"""A process that has loaded torch, and forks the commands of real runs: `python -m tests.kit.warm_server FD PADDING`.

A forked command differs from a started one only in what it need not load. It has its own command line, environment,
directory and output, and runs its module or script as `__main__`. A forked `paceline run` also finds its fork server
already forked: where the launcher would start `paceline.runtime.fork_server`, that fork gets the same words instead.
So does an agent, and a program that calls `paceline.launch`, for the first run that it launches. The commands that a
campaign starts are forked too: from a child of the campaign that is forked with it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.orphans import die_with_parent
from paceline.runtime import fork_server
from paceline.testing.network import _enter

LENGTH = struct.Struct("<I")
CODE = struct.Struct("<id")
"""The exit code of a command, and the seconds of processor time of the command and of the children it waited for."""


class Request(msgspec.Struct, frozen=True):
    """A command to fork. Files are sent with it: for its output, its errors and its exit code, and its network.

    A `bound` command dies with the process that forks it, and leads a session.
    """

    command: tuple[str, ...]
    env: dict[bytes, bytes]
    cwd: bytes
    bound: bool = False


class ForkServerWords(msgspec.Struct, frozen=True):
    """What a launcher gives to its fork server; the inherited socket is sent with it."""

    arguments: tuple[str, ...]
    env: dict[bytes, bytes]


Main = Callable[[], int | None]
"""What a process does after the loop that made it; the value is its exit code."""


LOADED = (
    *("numpy.random", "torch", "torch._dynamo"),
    *(f"paceline.cli.{name}" for name in ("run", "join", "scale", "status", "runs", "checkpoints", "audit", "screen")),
    *(f"paceline.engines.{name}" for name in ("join", "launch", "resume", "supervisor")),
    *("paceline.checkpoint.listing", "paceline.clients.observer", "paceline.coordinator.service"),
    *("paceline.coordinator.store", "paceline.server.service", "paceline.worker.job"),
    *("paceline.runtime.current_job", "paceline.runtime.role_process", "paceline.runtime.script"),
)
"""What the processes of a run need, except what each of them runs as `__main__`."""


def serve(sock: socket.socket) -> Main | None:
    """Fork a command for each request, and report how each ended. Returns in each fork; None at the end."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not sock:
                    selector.unregister(key.fileobj)
                    _report(key.fd, *key.data)
                    continue
                received = _receive(sock)
                if received is None:
                    return None
                request, output, errors, answer, network = received
                pid = os.fork()
                if pid == 0:
                    others = [key for key in selector.get_map().values() if key.fileobj is not sock]
                    for fd in (answer, *(key.fd for key in others), *(key.data[1] for key in others)):
                        os.close(fd)
                    sock.close()
                    return _become(request, output, errors, network)
                for fd in (output, errors, network):
                    os.close(fd)
                sock.sendall(LENGTH.pack(pid))
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answer))


def _receive(sock: socket.socket) -> tuple[Request, int, int, int, int] | None:
    header, files, _, _ = socket.recv_fds(sock, LENGTH.size, 4, socket.MSG_WAITALL)
    if not header:
        return None
    body = sock.recv(LENGTH.unpack(header)[0], socket.MSG_WAITALL)
    output, errors, answer, network = files
    return msgspec.msgpack.decode(body, type=Request), output, errors, answer, network


def _report(pidfd: int, pid: int, answer: int) -> None:
    """Send the exit code of a command that has ended."""
    os.close(pidfd)
    _, status, used = os.wait4(pid, 0)
    os.write(answer, CODE.pack(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))
    os.close(answer)


# ---------------------------------------------------------------- in the fork


def _become(request: Request, output: int, errors: int, network: int) -> Main:
    """Make this process the one of the command."""
    if request.bound:
        die_with_parent()
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _redirect(output, errors)
    if os.fstat(network).st_ino != os.stat("/proc/self/ns/net").st_ino:
        _enter(network)
    for fd in (output, errors, network):
        os.close(fd)
    os.chdir(request.cwd)
    _set_environment(request.env)
    fork_server._set_title(" ".join(request.command).encode())
    fork_server._reseed()
    _, *words = request.command
    if _launches(words):
        prepared = _prepare_fork_server()
    elif words[:3] == ["-m", "paceline.cli.main", "dev"]:
        prepared = _prepare_helper()
    else:
        prepared = None
    if prepared is not None:
        return prepared
    return lambda: run_main(words)


def _launches(words: Sequence[str]) -> bool:
    """Whether a command starts a run, or the roles of one."""
    if words[0] == "-m":
        return words[1] in ("paceline", "paceline.cli.main") and words[2:3] in (["run"], ["agent"])
    with contextlib.suppress(OSError), open(words[0], "rb") as script:
        return b"paceline.launch(" in script.read()
    return False


def _redirect(output: int, errors: int) -> None:
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)


def _set_environment(env: Mapping[bytes, bytes]) -> None:
    os.environb.clear()
    os.environb.update(env)


def run_main(words: Sequence[str]) -> None:
    """Do what `python WORDS` does: run a module or a script as `__main__`."""
    main = types.ModuleType("__main__")
    if words[0] == "-m":
        spec = importlib.util.find_spec(words[1])
        if spec is not None and spec.submodule_search_locations is not None:  # a package
            spec = importlib.util.find_spec(f"{words[1]}.__main__")
        assert spec is not None
        assert spec.origin is not None
        file, arguments, first = spec.origin, words[2:], os.getcwd()
        main.__spec__, main.__package__ = spec, spec.parent
    else:
        file, arguments, first = words[0], words[1:], os.path.dirname(os.path.abspath(words[0]))
    main.__file__ = file
    sys.argv, sys.path[0], sys.modules["__main__"] = [file, *arguments], first, main
    with open(file, "rb") as source:
        code = compile(source.read(), file, "exec")
    exec(code, main.__dict__)


# ---------------------------------------------------------------- the commands of a campaign


def _prepare_helper() -> Main | None:
    """Fork the process from which this campaign forks its commands. Returns what it does there; None in the campaign.

    It ends with the campaign.
    """
    mine, theirs = socket.socketpair()
    parent = os.getpid()
    if os.fork() == 0:
        mine.close()
        die_with_parent(parent)
        os.setsid()
        return lambda: _fork_commands(theirs)
    theirs.close()

    from tests.kit.warm import Forker, forking_subprocess

    from paceline.testing import launch

    vars(launch)["subprocess"] = forking_subprocess(Forker(mine, os.environ))
    return None


def _fork_commands(sock: socket.socket) -> int:
    with sock:
        run = serve(sock)
    return 0 if run is None else run() or 0


# ---------------------------------------------------------------- the fork server of a launcher


def _prepare_fork_server() -> Main | None:
    """Fork the future fork server of this launcher. Returns what it does there, and None in the launcher."""
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        mine.close()
        os.setsid()
        with open(os.devnull, "wb") as nothing:
            _redirect(nothing.fileno(), nothing.fileno())
        return lambda: _wait_to_serve(theirs)
    theirs.close()

    from paceline.engines import fork_client

    def popen(command: Sequence[str], **named: Any) -> Any:
        if mine.fileno() < 0:  # a launcher that starts another one starts it by its command
            return subprocess.Popen(command, **named)
        env = {os.fsencode(key): os.fsencode(value) for key, value in named["env"].items()}
        body = msgspec.msgpack.encode(ForkServerWords(tuple(command[3:]), env))
        with mine:
            socket.send_fds(mine, [LENGTH.pack(len(body))], named["pass_fds"])
            mine.sendall(body)
        return Prepared(pid)

    vars(fork_client)["subprocess"] = types.SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    return None


@dataclass(slots=True)
class Prepared:
    """What the launcher sees of a process that it started: it waits for the process by its id."""

    pid: int
    returncode: int | None = None


def _wait_to_serve(sock: socket.socket) -> int:
    """Wait for the words of the launcher and serve it; end if the launcher ends without them."""
    with sock:
        header, files, _, _ = socket.recv_fds(sock, LENGTH.size, 1, socket.MSG_WAITALL)
        if not header:
            return 0
        body = sock.recv(LENGTH.unpack(header)[0], socket.MSG_WAITALL)
    words = msgspec.msgpack.decode(body, type=ForkServerWords)
    _set_environment(words.env)
    parent, _, *more = words.arguments
    return fork_server.main([parent, str(files[0]), *more])


def main(argv: list[str]) -> None:
    """Detach from the process that started this one, load, and serve until that process closes the socket."""
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    for name in LOADED:
        importlib.import_module(name)
    fork_server._freeze()
    with socket.socket(fileno=int(argv[0])) as sock:
        sock.sendall(LENGTH.pack(os.getpid()))
        run = serve(sock)
    if run is None:
        os._exit(0)  # at once: the end of an interpreter with torch takes a second
    try:
        code = run() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    fork_server.end_fork(code)


if __name__ == "__main__":
    main(sys.argv[1:])
