"""A run's directory: the names of its files, the token, the coordinator's address, and the launcher's lock."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ClusterLostError, StateError, UsageError
from paceline.wire.token import check_token, new_token

ENDED, UNFINISHED = "ended", "unfinished"
"""The `state` in the end file of a run: its launcher wrote how the run ended; the launcher lives or was killed."""

CODE, FILES = "code", "files"
"""Folders of a run directory with a copy of the user's files, if it has one: as a directory, and by their SHA-256."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory: the paths of its files, and how they are read and written."""

    path: Path

    @classmethod
    def named(cls, path: Path | None) -> RunDir:
        """Return the run in `path`; without it the newest run below this directory (``runs/latest``).

        The `path` of the result is the directory itself, never a link to it: ``latest`` may point elsewhere later.

        Raises:
            UsageError: `path` is not a directory.
        """
        path = path or Path("runs/latest")
        if not path.is_dir():
            raise UsageError(f"{path} is not a run directory; give one, or start a run with `paceline run`")
        return cls(_without_link(path))

    @property
    def token_file(self) -> Path:
        """The job's secret, readable by its owner only."""
        return self.path / "token"

    @property
    def coordinator_file(self) -> Path:
        """The address at which the coordinator listens."""
        return self.path / "coordinator.json"

    @property
    def log_file(self) -> Path:
        """The commit log."""
        return self.path / "log.sqlite"

    @property
    def logs(self) -> Path:
        """The directory of the output and logs: one file per process name."""
        return self.path / "logs"

    @property
    def roles(self) -> Path:
        """The directory of the configurations of processes: one `RoleSpec` per file."""
        return self.path / "roles"

    @property
    def trace(self) -> Path:
        """The directory in which processes record their traces."""
        return self.path / "trace"

    @property
    def summary_file(self) -> Path:
        """The summary of the last time that the run was done. It counts only if `done`."""
        return self.path / "summary.json"

    @property
    def end_file(self) -> Path:
        """How the run ended, if it ended before it was complete. While it exists, the summary does not count."""
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
        """Read the plan file; returns {} if there is none.

        Raises:
            UsageError: the plan file cannot be read.
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
        """Write the plan file: how the run was started."""
        replace_file(self.plan_file, json.dumps(plan, indent=2) + "\n")

    @property
    def done(self) -> bool:
        """Whether the run is complete. A resumed run is not until it is complete again; the old summary stays."""
        return self.summary_file.exists() and not self.end_file.exists()

    def write_end(self, end: Mapping[str, Any]) -> None:
        """Write how the run ended before it was complete."""
        replace_file(self.end_file, json.dumps({**end, "at": time.time()}, indent=2) + "\n")

    def end(self) -> dict[str, Any] | None:
        """Read how the run ended; None if it is complete or was never resumed and its launcher was killed.

        The `state` is `ENDED`, or `UNFINISHED` for a run whose launcher did not write how it ended: it lives or was
        killed.
        """
        try:
            end = json.loads(self.end_file.read_text())
        except (OSError, ValueError):
            return None
        return end if isinstance(end, dict) else None

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Hold the launcher lock of the run during the block.

        Raises:
            UsageError: another launcher holds the lock.
        """
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock(descriptor, fcntl.LOCK_EX, patience_s=0.2):  # `launched` may hold it for a moment
                raise UsageError(f"the run in {self.path} is running: wait for its end, or stop its launcher")
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
        """Seconds to wait for an answer of the coordinator. Longer with a live launcher, which may be restarting it."""
        return 10.0 if self.launched else 2.0

    @property
    def _lock_file(self) -> Path:
        return self.path / "launcher.lock"

    @classmethod
    def create(cls, path: Path, token_file: Path | None = None) -> RunDir:
        """Make a new run directory with a new token, or with the token in `token_file`.

        Raises:
            UsageError: the directory has a run already, or cannot be made; or the token cannot be read.
        """
        run = cls(path)
        token = new_token() if token_file is None else read_token(token_file)
        if run.token_file.exists() or run.log_file.exists():
            raise UsageError(f"{path} holds a run already: name another one (--dir, or join(dir=…)), or remove it")
        try:
            run.logs.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(run.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UsageError(f"cannot make the run directory {path}: {error.strerror} (choose it with --dir)") from None
        with os.fdopen(descriptor, "w") as file:
            file.write(token.hex())
        return run

    def token(self) -> bytes:
        """The job's secret.

        Raises:
            UsageError: the directory has no token, so it is not a run directory; or the token cannot be read.
        """
        if not self.token_file.exists():
            raise UsageError(f"{self.path} is not a run directory (it has no file `token`)")
        return read_token(self.token_file)

    def announce(self, address: str, generation: int) -> None:
        """Write the address at which the coordinator listens."""
        replace_file(
            self.coordinator_file, json.dumps({"address": address, "generation": generation, "pid": os.getpid()})
        )

    def coordinator(self) -> str | None:
        """Read the coordinator's newest address; None if none was announced."""
        try:
            return str(json.loads(self.coordinator_file.read_text())["address"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def wait_for_coordinator(self, timeout_s: float) -> str:
        """Wait until the coordinator has announced its address, and return it.

        Raises:
            ClusterLostError: no address was announced within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (address := self.coordinator()) is None:
            if time.monotonic() > deadline:
                raise ClusterLostError(f"no coordinator has announced itself in {self.path} for {timeout_s:.0f} s")
            time.sleep(0.005)
        return address


def run_identity(run: RunDir) -> str:
    """A name of the run that no other run has; it tells nothing about the token."""
    return hashlib.sha256(b"paceline run" + run.token() + str(run.path.resolve()).encode()).hexdigest()[:16]


def read_token(file: Path) -> bytes:
    """Read a token from a file.

    Raises:
        UsageError: the file cannot be read, or has no token.
    """
    try:
        return check_token(bytes.fromhex(file.read_text().strip()))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{file} is not a token: copy it again from the run's own directory") from None


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
    """Replace a file atomically: a reader sees the old content or the new one.

    Raises:
        StateError: the file cannot be written, for example because the disk is full. The old content is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StateError(f"cannot write {path}: {error.strerror}") from error


def begin_run(run: RunDir) -> None:
    """Take note that a launcher has started the run: what the files say about an earlier end holds no more.

    A summary of an earlier end stays until `finish_run` replaces it. Call it while holding the launcher lock.
    """
    if run.summary_file.exists():
        run.write_end({"state": UNFINISHED, "reason": "the launcher of a resumed run was killed"})
    else:
        run.end_file.unlink(missing_ok=True)


def finish_run(run: RunDir, summary: str) -> None:
    """Write the summary file, and let it count: the run is complete."""
    replace_file(run.summary_file, summary)
    run.end_file.unlink(missing_ok=True)


def next_run(root: Path, stem: str) -> Path:
    """Make a new numbered directory in `root`, such as ``runs/train-0001``."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = root / f"{stem}-{number:04d}"
            with contextlib.suppress(FileExistsError):  # this number is in use, perhaps by a run that starts now
                path.mkdir()
                return path
    except OSError as error:
        raise UsageError(f"cannot make a directory in {root}: {error.strerror} (choose one with --dir)") from None
    raise AssertionError


def point_latest(path: Path) -> None:
    """Make the link ``latest`` beside the run in `path` point to the run. A directory called ``latest`` stays."""
    path = _without_link(path)
    link = path.parent / "latest"
    if link.is_dir() and not link.is_symlink():
        return
    temporary = path.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.name)
    temporary.replace(link)


def _without_link(path: Path) -> Path:
    """The directory that `path` names: `path` itself or, if it is a link, what it points to."""
    if not path.is_symlink():
        return path
    real = Path(os.path.realpath(path))
    beside = real.parent == Path(os.path.realpath(path.parent))
    return path.parent / real.name if beside else real
