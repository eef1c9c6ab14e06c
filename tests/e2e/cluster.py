"""Real runs for tests: `paceline run` and plain scripts as processes, each with a deadline."""

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

from paceline.clients.observer import Observer
from paceline.errors import TransportError, UsageError
from paceline.messages.status import Status
from paceline.runtime.rundir import RunDir

ROOT = Path(__file__).resolve().parents[2]
TRAIN_CASE = ROOT / "tests" / "e2e" / "train_case.py"
PACELINE = [sys.executable, "-m", "paceline.cli.main"]
TIMEOUT_S = 100.0


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, such that scripts find `tests.e2e.cases`, with `changes`."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **changes}


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended, with all that it printed."""

    code: int
    out: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def results(self) -> list[dict[str, Any]]:
        """What every `train_case` of the run reported."""
        return [json.loads(found) for found in re.findall(r"RESULT (\{.*\})", self.out)]

    def check(self, code: int = 0) -> Ended:
        assert self.code == code, f"exit code {self.code} instead of {code}:\n{self.out}"
        return self


def _hear_ctrl_c() -> None:
    """A suite that a shell started in the background ignores SIGINT, and its children would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(command: Sequence[object], cwd: Path, timeout_s: float = TIMEOUT_S, **env: str) -> Ended:
    """Run a command to its end. Its children must end with it; the hygiene fixture looks after that."""
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
    """A run of `paceline run` that ended well."""

    ended: Ended
    dir: Path
    summary: dict[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the summary, which every worker's own model must have as well."""
        digest: str = self.summary["digest"]
        for result in self.ended.results():
            for case in result.values():
                assert case["digest"] == digest, "a worker does not hold the final version"
        return digest


def train(cwd: Path, options: Sequence[str], *arguments: str, **env: str) -> Trained:
    """`paceline run OPTIONS train_case.py ARGUMENTS`, to its good end."""
    where = cwd / "run"
    command = [*PACELINE, "run", "--seed", "7", "--dir", str(where), *options, str(TRAIN_CASE), *arguments]
    ended = run(command, cwd, TIMEOUT_S, **env).check()
    return Trained(ended, where, json.loads((where / "summary.json").read_text()))


# ------------------------------------------------------------------ a run that a test disturbs


@dataclass(slots=True)
class Live:
    """`paceline run` while it runs."""

    process: subprocess.Popen[str]
    dir: Path
    began: float
    lines: list[str] = field(default_factory=list)

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Wait for its end, and for the end of its output."""
        self.process.wait(timeout_s)
        ended = time.monotonic()
        return Ended(self.process.returncode, self.output(), ended - self.began)

    def output(self, patience_s: float = 5.0) -> str:
        """What it has printed, in full if it ends within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while self.process.poll() is not None and self.lines[-1:] != [""] and time.monotonic() < deadline:
            time.sleep(0.01)
        return "".join(self.lines)

    def status(self) -> Status | None:
        """What the coordinator says, None while there is none."""
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
        """Wait until the run's status is as wanted."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            status = self.status()
            if status is not None and reached(status):
                return status
            time.sleep(0.05)
        raise AssertionError(f"the run never got there:\n{self.output()}")

    def until_version(self, version: int) -> Status:
        """Wait for a commit."""
        return self.until(lambda status: status.version >= version)

    def roles(self) -> dict[str, psutil.Process]:
        """The processes of the run, by name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                words = child.cmdline()
                if "paceline.runtime.role_process" not in words:
                    continue  # between fork and exec
                found[words[words.index("paceline.runtime.role_process") + 3]] = child
            except psutil.Error:
                continue  # it has just ended
        return found


@contextmanager
def live(cwd: Path, options: Sequence[str], script: Path, *arguments: str, **env: str) -> Iterator[Live]:
    """Start `paceline run`; whatever happens in the block, the launcher is gone after it."""
    where = cwd / "run"
    process = subprocess.Popen(
        [*PACELINE, "run", "--dir", str(where), *options, str(script), *arguments],
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_hear_ctrl_c,
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
