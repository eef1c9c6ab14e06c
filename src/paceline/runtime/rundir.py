"""A run's directory: the names of its files, the token, the coordinator's address, and the launcher's lock."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ClusterLostError, UsageError
from paceline.wire.token import new_token


@dataclass(frozen=True, slots=True)
class RunDir:
    """Names inside a run directory."""

    path: Path

    @classmethod
    def named(cls, path: Path | None) -> RunDir:
        """The run that a user names, by default the newest one below this directory.

        Raises:
            UsageError: there is no such directory.
        """
        path = path or Path("runs/latest")
        if not path.is_dir():
            raise UsageError(f"{path} is not a run directory; give one, or start a run with `paceline run`")
        return cls(path)

    @property
    def token_file(self) -> Path:
        """The job's secret, readable by its owner only."""
        return self.path / "token"

    @property
    def coordinator_file(self) -> Path:
        """Where the coordinator listens."""
        return self.path / "coordinator.json"

    @property
    def log_file(self) -> Path:
        """The commit log."""
        return self.path / "log.sqlite"

    @property
    def logs(self) -> Path:
        """What each role prints and logs: a file a name."""
        return self.path / "logs"

    @property
    def roles(self) -> Path:
        """How each process was configured: a `RoleSpec` a file."""
        return self.path / "roles"

    @property
    def trace(self) -> Path:
        """The recordings of the roles for a trace."""
        return self.path / "trace"

    @property
    def summary_file(self) -> Path:
        """The summary of a run that has ended."""
        return self.path / "summary.json"

    @property
    def end_file(self) -> Path:
        """How a run ended that was not completed."""
        return self.path / "ended.json"

    @property
    def plan_file(self) -> Path:
        """How the run was started, for `paceline join` and `paceline run --resume`."""
        return self.path / "run.json"

    @property
    def checkpoints(self) -> str:
        """Where the run's checkpoints are: a directory or an fsspec URL."""
        return str(self.plan().get("checkpoints") or self.path / "checkpoints")

    def plan(self) -> dict[str, Any]:
        """What the plan file says; empty where there is none.

        Raises:
            UsageError: it is there and cannot be read.
        """
        try:
            plan = json.loads(self.plan_file.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.plan_file} cannot be read: {error}") from None
        if not isinstance(plan, dict):
            raise UsageError(f"{self.plan_file} cannot be read: it is not a JSON object")
        return plan

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Keep how the run was started."""
        replace_file(self.plan_file, json.dumps(plan, indent=2) + "\n")

    def write_summary(self, text: str) -> None:
        """Keep the summary: the run is complete."""
        replace_file(self.summary_file, text)

    def write_end(self, end: Mapping[str, Any]) -> None:
        """Keep how the run ended that was not completed."""
        replace_file(self.end_file, json.dumps({**end, "at": time.time()}, indent=2) + "\n")

    def end(self) -> dict[str, Any] | None:
        """How it ended; None for a run that is complete or running, or whose launcher was killed."""
        try:
            end = json.loads(self.end_file.read_text())
        except (OSError, ValueError):
            return None
        return end if isinstance(end, dict) else None

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Hold the run's launcher lock for as long as the block lasts.

        Raises:
            UsageError: another launcher holds it.
        """
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock(descriptor, fcntl.LOCK_EX, patience_s=0.2):  # `launched` holds it for a moment
                raise UsageError(f"{self.path} is running: another launcher holds it")
            yield
        finally:
            os.close(descriptor)

    @property
    def launched(self) -> bool:
        """Whether a launcher of this run is alive on this machine."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDONLY)
        except OSError:
            return False
        try:
            return not _lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    @property
    def answer_s(self) -> float:
        """How long to wait for the coordinator's answer: a live launcher may be restarting it."""
        return 10.0 if self.launched else 2.0

    @property
    def _lock_file(self) -> Path:
        return self.path / "launcher.lock"

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make a new run directory with a new token.

        Raises:
            UsageError: the directory has been used.
        """
        run = cls(path)
        if run.token_file.exists() or run.log_file.exists():
            raise UsageError(f"{path} holds a run already: name another one (--dir, or join(dir=…)), or remove it")
        try:
            run.logs.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(run.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UsageError(f"cannot make the run directory {path}: {error.strerror} (choose it with --dir)") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(new_token().hex())
        return run

    def token(self) -> bytes:
        """The job's secret.

        Raises:
            UsageError: there is no run here.
        """
        try:
            return bytes.fromhex(self.token_file.read_text().strip())
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{self.path} is not a run directory (no token in it)") from None

    def announce(self, address: str, generation: int) -> None:
        """Keep the address at which the coordinator listens."""
        replace_file(
            self.coordinator_file, json.dumps({"address": address, "generation": generation, "pid": os.getpid()})
        )

    def coordinator(self) -> str | None:
        """The coordinator's newest address, None until it has announced one."""
        try:
            return str(json.loads(self.coordinator_file.read_text())["address"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def wait_for_coordinator(self, timeout_s: float) -> str:
        """The coordinator's address, as soon as there is one.

        Raises:
            ClusterLostError: none within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (address := self.coordinator()) is None:
            if time.monotonic() > deadline:
                raise ClusterLostError(f"no coordinator has announced itself in {self.path} for {timeout_s:.0f} s")
            time.sleep(0.005)
        return address


def _lock(descriptor: int, how: int, patience_s: float = 0.0) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


def replace_file(path: Path, text: str) -> None:
    """Replace a file at once: a reader sees the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def next_run(root: Path, stem: str) -> Path:
    """Make a new numbered directory in `root`, such as ``runs/train-0001``."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = root / f"{stem}-{number:04d}"
            with contextlib.suppress(FileExistsError):  # taken, perhaps by a run that starts just now
                path.mkdir()
                return path
    except OSError as error:
        raise UsageError(f"cannot make a directory in {root}: {error.strerror} (choose one with --dir)") from None
    raise AssertionError


def point_latest(path: Path) -> None:
    """Let the link ``latest`` beside the run point to it."""
    link = path.parent / "latest"
    temporary = path.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    if link.is_dir() and not link.is_symlink():
        temporary.unlink()
        return
    temporary.replace(link)
