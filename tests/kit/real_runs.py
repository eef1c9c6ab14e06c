"""Real runs for tests: `paceline run` and plain scripts as processes, each with a deadline.

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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.kit.hurry import HURRY

from paceline.clients.observer import Observer
from paceline.errors import TransportError, UsageError
from paceline.messages.status import Status
from paceline.runtime.rundir import RunDir

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "kit" / "scripts"
TRAIN_CASE = SCRIPTS / "train_case.py"
SMALL = SCRIPTS / "small.py"
WHOLE_API = SCRIPTS / "whole_api.py"
PACELINE = [sys.executable, "-m", "paceline.cli.main"]
TIMEOUT_S = 100.0
FOREVER = ["--epochs", "100000", "--sleep", "0.01"]
"""Arguments of `SMALL` for a run that a test ends."""
SLOW = json.dumps({f"worker-{i}": 0.15 for i in range(8)})
"""The `--sleep` of `TRAIN_CASE` with which a test on a busy machine still disturbs a run in time."""


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, with `changes`; scripts can import `tests.kit`."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **changes}


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended, with its output."""

    code: int
    out: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def results(self) -> list[dict[str, Any]]:
        """The result that each `train_case` of the run printed."""
        return [json.loads(found) for found in re.findall(r"RESULT (\{.*\})", self.out)]

    def check(self, code: int = 0) -> Ended:
        assert self.code == code, f"exit code {self.code} instead of {code}:\n{self.out}"
        return self


def _default_sigint() -> None:
    """Restore SIGINT: a test suite that a shell started in the background ignores it, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(command: Sequence[object], cwd: Path, timeout_s: float = TIMEOUT_S, **env: str) -> Ended:
    """Run a command to its end. The hygiene fixture checks that its children have ended too."""
    began = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, time.monotonic() - began)


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

    process: subprocess.Popen[str]
    dir: Path
    began: float
    lines: list[str] = field(default_factory=list)

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Wait until the run and its output have ended."""
        self.process.wait(timeout_s)
        ended = time.monotonic()
        return Ended(self.process.returncode, self.output(), ended - self.began)

    def output(self, patience_s: float = 5.0) -> str:
        """The output so far; the whole output if the run ends within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while self.process.poll() is not None and self.lines[-1:] != [""] and time.monotonic() < deadline:
            time.sleep(0.01)
        return "".join(self.lines)

    def status(self) -> Status | None:
        """The status that the coordinator reports; None while no coordinator answers."""
        try:
            address, token = RunDir(self.dir).coordinator(), RunDir(self.dir).token()
        except UsageError:
            return None
        if address is None:
            return None
        observer = Observer(address, token)
        try:
            return observer.status(timeout_s=2.0)
        except TransportError:
            return None
        finally:
            observer.close()

    def until(self, reached: Callable[[Status], bool], timeout_s: float = 60.0) -> Status:
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
    process = subprocess.Popen(
        [*PACELINE, "run", "--dir", str(where), *options, str(script), *arguments],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_default_sigint,
    )
    running = Live(process, where, time.monotonic())
    assert process.stdout is not None
    out = process.stdout

    def read() -> None:
        running.lines.extend(out)
        running.lines.append("")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        reader.join(timeout=10.0)
        out.close()
