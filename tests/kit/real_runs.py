"""Real runs for tests: `paceline run` and plain scripts as processes, each with a deadline.

Commands are forked from a process that has loaded torch (`tests.kit.warm`) where `warmed` has started one: for tests
marked `real_run`. Inside `cold` they are started like by a user, who has no such process.

Scripts that sleep in their turns, so that a test can disturb them in time, stop sleeping once a file named `HURRY`
is in their working directory: `Live.hurry` creates it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from tests.kit.hurry import HURRY
from tests.kit.warm import WarmProcess, WarmServer, forking_subprocess

from paceline.clients.observer import Observer
from paceline.errors import TransportError, UsageError
from paceline.messages.status import Status
from paceline.runtime.rundir import RunDir
from paceline.testing import launch

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "kit" / "scripts"
TRAIN_CASE = SCRIPTS / "train_case.py"
SMALL = SCRIPTS / "small.py"
WHOLE_API = SCRIPTS / "whole_api.py"
EARLY_END = SCRIPTS / "early_end.py"
OWN_VALIDATION = SCRIPTS / "own_validation.py"
PACELINE = [sys.executable, "-m", "paceline.cli.main"]
TIMEOUT_S = 200.0
FOREVER = ["--epochs", "100000", "--sleep", "0.01"]
"""Arguments of `SMALL` for a run that a test ends."""
SLOW = json.dumps({f"worker-{i}": 0.15 for i in range(8)})
"""The `--sleep` of `TRAIN_CASE` with which a test on a busy machine still disturbs a run in time."""


_SET_BY_TORCH = ("KMP_", "OMP_", "TORCHINDUCTOR_", "TRITON_")
_AT_START = frozenset(os.environ)


def environment(**changes: str) -> dict[str, str]:
    """The environment that this process began with, and what tests set, with `changes`; scripts can import `tests.kit`.

    Variables that torch set in this process are left out: the environment does not depend on the tests before.
    """
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    mine = {k: v for k, v in os.environ.items() if k in _AT_START or not k.startswith(_SET_BY_TORCH)}
    return {**mine, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **changes}


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended, with its output. `err` is "" if both streams are in `out`."""

    code: int
    out: str
    seconds: float
    err: str = ""

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def results(self) -> list[dict[str, Any]]:
        """The result that each `train_case` of the run printed."""
        return [json.loads(found) for found in re.findall(r"RESULT (\{.*\})", self.out)]

    def check(self, code: int = 0) -> Ended:
        assert self.code == code, f"exit code {self.code} instead of {code}:\n{self.out}"
        return self


def default_sigint() -> None:
    """Restore SIGINT: a test suite that a shell started in the background ignores it, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


_warm: list[WarmServer] = []


@contextmanager
def warmed() -> Iterator[None]:
    """Inside the block, commands are forked from a process that has loaded torch."""
    server = WarmServer(environment())
    _warm.append(server)
    try:
        yield
    finally:
        _warm.remove(server)
        server.close()


@contextmanager
def cold() -> Iterator[None]:
    """Inside the block, every command is started, and loads torch by itself."""
    kept, _warm[:] = _warm[:], []
    try:
        yield
    finally:
        _warm[:] = kept


@contextmanager
def launched_warm() -> Iterator[None]:
    """Inside the block, `paceline.testing.launch.Launched` forks its commands, if their environment is `environment`.

    Variables that torch has set in this process are out of this process's environment meanwhile.
    """
    server = warm_server()
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - environment().keys():
            patch.delenv(name)
        if server is not None:
            patch.setattr(launch, "subprocess", forking_subprocess(server))
        yield


def warm_server() -> WarmServer | None:
    """The process from which commands are forked now, if there is one."""
    return _warm[-1] if _warm else None


Process = subprocess.Popen[bytes] | WarmProcess


def _start(
    command: Sequence[object], cwd: Path, output: int, env: dict[str, str], errors: int | None = None
) -> Process:
    """Start a command whose output goes to the file descriptors `output` and `errors` (None: both to `output`)."""
    words = [str(part) for part in command]
    for server in _warm:
        if server.can_start(words, env):
            return server.start(words, cwd, env, output, errors)
    return subprocess.Popen(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if errors is None else errors,
        preexec_fn=default_sigint,
    )


@dataclass(frozen=True, slots=True)
class Background:
    """A command that runs beside the test."""

    process: Process
    began: float
    output: IO[bytes]

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Wait until the command has ended."""
        code = self.process.wait(timeout_s)
        seconds = time.monotonic() - self.began
        self.output.seek(0)
        return Ended(code, self.output.read().decode(), seconds)


@contextmanager
def background(command: Sequence[object], cwd: Path, **env: str) -> Iterator[Background]:
    """Start a command. It is killed at the end of the block if it still runs."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = _start(command, cwd, output.fileno(), environment(**env))
        try:
            yield Background(process, began, output)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def run(command: Sequence[object], cwd: Path, timeout_s: float = TIMEOUT_S, **env: str) -> Ended:
    """Run a command to its end; `out` has both streams. The hygiene fixture checks that its children have ended too."""
    with background(command, cwd, **env) as started:
        return started.wait(timeout_s)


def run_apart(command: Sequence[object], cwd: Path, timeout_s: float = TIMEOUT_S, **env: str) -> Ended:
    """Run a command to its end; `out` has its standard output, `err` its standard error."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = _start(command, cwd, output.fileno(), environment(**env), errors.fileno())
        try:
            code = process.wait(timeout_s)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        seconds = time.monotonic() - began
        for file in (output, errors):
            file.seek(0)
        return Ended(code, output.read().decode(), seconds, errors.read().decode())


def python(*arguments: str | Path, cwd: Path, timeout_s: float = TIMEOUT_S, **env: str) -> Ended:
    """Run plain Python."""
    return run([sys.executable, *arguments], cwd, timeout_s, **env)


@dataclass(frozen=True, slots=True)
class Trained:
    """A `paceline run` that succeeded."""

    ended: Ended
    dir: Path
    summary: dict[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the summary; the model of every worker must have it too."""
        digest: str = self.summary["digest"]
        for result in self.ended.results():
            for case in result.values():
                assert case["digest"] == digest, "a worker does not hold the final version"
        return digest


def train(cwd: Path, options: Sequence[str], *arguments: str, **env: str) -> Trained:
    """`paceline run OPTIONS train_case.py ARGUMENTS`, which must succeed."""
    where = cwd / "run"
    command = [*PACELINE, "run", "--seed", "7", "--dir", str(where), *options, str(TRAIN_CASE), *arguments]
    return trained_in(cwd, run(command, cwd, TIMEOUT_S, **env))


def trained_in(cwd: Path, ended: Ended) -> Trained:
    """The run in `cwd`, which must have succeeded."""
    ended.check()
    return Trained(ended, cwd / "run", json.loads((cwd / "run" / "summary.json").read_text()))


# ------------------------------------------------------------------ a run that a test disturbs


@dataclass(slots=True)
class Live:
    """A `paceline run` that still runs."""

    process: Process
    dir: Path
    began: float
    lines: list[str] = field(default_factory=list)
    _observer: Observer | None = None

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Wait until the run and its output have ended."""
        code = self.process.wait(timeout_s)
        ended = time.monotonic()
        return Ended(code, self.output(), ended - self.began)

    def output(self, patience_s: float = 5.0) -> str:
        """The output so far; the whole output if the run ends within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while self.process.poll() is not None and self.lines[-1:] != [""] and time.monotonic() < deadline:
            time.sleep(0.01)
        return "".join(self.lines)

    def status(self) -> Status | None:
        """The status that the coordinator reports; None while no coordinator answers."""
        try:
            if self._observer is None:
                self._observer = Observer(RunDir(self.dir).coordinator, RunDir(self.dir).token())
            return self._observer.status(timeout_s=2.0)
        except (TransportError, UsageError):  # UsageError: the run directory has no token yet
            return None

    def close(self) -> None:
        """End the session with the coordinator."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def until(self, reached: Callable[[Status], bool], timeout_s: float = 120.0) -> Status:
        """Wait for a status for which `reached` holds."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            status = self.status()
            if status is not None and reached(status):
                return status
            time.sleep(0.05)
        raise AssertionError(f"the run never reached the awaited status:\n{self.output()}")

    def until_version(self, version: int) -> Status:
        """Wait until `version` is committed."""
        return self.until(lambda status: status.version >= version)

    def hurry(self) -> None:
        """Make the scripts of the run stop sleeping: the test has done what it needed time for."""
        (self.dir.parent / HURRY).touch()

    def strike(self, role: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a role."""
        self.roles()[role].send_signal(number)

    def roles(self) -> dict[str, psutil.Process]:
        """The processes of the run's roles, by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                words = child.cmdline()
                if "paceline.runtime.role_process" not in words:
                    continue  # between fork and exec
                found[words[words.index("paceline.runtime.role_process") + 2]] = child
            except psutil.Error:
                continue  # the process has just ended
        return found


@contextmanager
def live(cwd: Path, options: Sequence[str], script: Path, *arguments: str, **env: str) -> Iterator[Live]:
    """Start `paceline run`. The launcher is killed at the end of the block if it still runs."""
    where = cwd / "run"
    reading, writing = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("r", "w"), strict=True))
    with reading:
        with writing:
            command = [*PACELINE, "run", "--dir", where, *options, script, *arguments]
            process = _start(command, cwd, writing.fileno(), environment(**env))
        running = Live(process, where, time.monotonic())

        def read() -> None:
            running.lines.extend(reading)
            running.lines.append("")

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            running.close()
            reader.join(timeout=10.0)
