"""The commands `paceline` and `python` for a shell, each forked from a process that has loaded torch.

A tool on the PATH of the shell sends its words, its directory, its environment and its output to `WarmTools`, and ends
as the command ends. A tool that is killed takes its command with it. What the warm process cannot fork, the tool runs.
"""

from __future__ import annotations

import contextlib
import itertools
import marshal
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.kit.warm import WarmProcess, WarmServer

_LENGTH = struct.Struct("<I")
_CODE = struct.Struct("<i")
_NUMBERS = itertools.count()

_TOOL = """\
#!{python} -IS
import marshal, os, socket, sys
words = {words!r} + sys.argv[1:]
body = marshal.dumps((words, os.getcwd(), dict(os.environ)))
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect({address!r})
    socket.send_fds(sock, [len(body).to_bytes(4, "little")], [1, 2])
    sock.sendall(body)
    code = sock.recv(4, socket.MSG_WAITALL)
if not code:
    os.execv(words[0], words)
code = int.from_bytes(code, "little", signed=True)
os._exit(code if code >= 0 else 128 - code)
"""


class WarmTools:
    """Tools in `folder`. `cpu_s` is the processor time of the commands that have ended, with their children."""

    def __init__(self, folder: Path, server: WarmServer, tools: Mapping[str, Sequence[str]]) -> None:
        """`tools` has the words that each tool begins with, by its name."""
        self.cpu_s = 0.0
        self._server = server
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        address = f"\0paceline-tools-{os.getpid()}-{next(_NUMBERS)}"
        self._listener.bind(address)
        self._listener.listen()
        for name, words in tools.items():
            tool = folder / name
            tool.write_text(_TOOL.format(python=sys.executable, words=list(words), address=address))
            tool.chmod(0o755)
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is shut down
            while True:
                self._begin(self._serve, self._listener.accept()[0])

    def _serve(self, tool: socket.socket) -> None:
        """Run the command of one tool."""
        with tool:
            header, files, _, _ = socket.recv_fds(tool, _LENGTH.size, 2, socket.MSG_WAITALL)
            if len(header) < _LENGTH.size:
                return
            body = tool.recv(_LENGTH.unpack(header)[0], socket.MSG_WAITALL)
            try:
                process = self._start(*marshal.loads(body), *files)
            finally:
                for file in files:
                    os.close(file)
            if process is not None:
                self._follow(tool, process)

    def _start(
        self, words: Sequence[str], cwd: str, env: Mapping[str, str], output: int, errors: int
    ) -> WarmProcess | None:
        with self._lock:
            if not self._server.can_start(words, env):
                return None
            return self._server.start(words, Path(cwd), env, output, errors)

    def _follow(self, tool: socket.socket, process: WarmProcess) -> None:
        """Wait until the command has ended, and kill it if its tool ends before."""
        ends: list[socket.socket | WarmProcess] = [tool, process]
        if tool in select.select(ends, [], [])[0]:
            process.kill()
        code = process.wait()
        with self._lock:
            self.cpu_s += process.cpu_s
        with contextlib.suppress(OSError):
            tool.sendall(_CODE.pack(code))

    def close(self) -> None:
        """Take no more commands, and wait for those that run."""
        self._listener.shutdown(socket.SHUT_RDWR)
        while self._threads:
            self._threads.pop().join()
        self._listener.close()
