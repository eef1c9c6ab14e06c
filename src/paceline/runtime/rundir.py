"""A run's directory: its token, the coordinator's address, the log, and where things go."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import ClusterLostError, UsageError
from paceline.wire.handshake import new_token


@dataclass(frozen=True, slots=True)
class RunDir:
    """Names inside a run directory."""

    path: Path

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
        """What the roles print."""
        return self.path / "logs"

    @property
    def summary_file(self) -> Path:
        """The summary of a run that has ended."""
        return self.path / "summary.json"

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
        """The secret.

        Raises:
            UsageError: there is no run here.
        """
        try:
            return bytes.fromhex(self.token_file.read_text().strip())
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{self.path} is not a run directory (no token in it)") from None

    def announce(self, address: str, generation: int) -> None:
        """The coordinator says where it listens."""
        temporary = self.coordinator_file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"address": address, "generation": generation, "pid": os.getpid()}))
        temporary.replace(self.coordinator_file)

    def coordinator(self) -> str | None:
        """The coordinator's address, None until it has announced one."""
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


def next_run(root: Path, stem: str) -> Path:
    """A new numbered directory name under `root`, such as ``runs/train-0001``; it is made, so that it is taken."""
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
    """``latest`` beside the run names the newest one."""
    link = path.parent / "latest"
    temporary = path.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    if link.is_dir() and not link.is_symlink():
        temporary.unlink()
        return
    temporary.replace(link)
