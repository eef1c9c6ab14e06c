"""Lists the runs in a directory with their state, size and age, and removes runs that are not running."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from paceline.engines.resume import is_running
from paceline.errors import TransportError, UsageError
from paceline.messages.status import RunSummary
from paceline.runtime.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED
from paceline.runtime.observing import observing
from paceline.runtime.rundir import ENDED, UNFINISHED, RunDir

DONE, RUNNING, FAILED, INTERRUPTED = "done", "running", "failed", "interrupted"
STATES = (DONE, RUNNING, FAILED, INTERRUPTED, UNFINISHED)
"""The states of a run. A run is unfinished if its launcher was killed: no file says how the run ended.

The launcher's lock counts first, then `ended.json`, then `summary.json`: while a finished run is resumed, and after
that if it ends too early, its old summary stays and does not count.
"""

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LOOK_S = 1.0


class RunRow(msgspec.Struct, frozen=True):
    """One run. `step` is None if it is not known; `age_s` is the time since a file of the run last changed."""

    name: str
    path: str
    state: str
    step: int | None
    nbytes: int
    age_s: float


def parse_age(text: str) -> float:
    """Read an age such as ``90s``, ``30m``, ``12h``, ``7d`` or ``2w``; returns seconds.

    Raises:
        UsageError: anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None:
        raise UsageError(f"--older-than must be a number and a unit, such as 90s, 30m, 12h or 7d, not {text!r}")
    return float(found[1]) * _UNITS_S[found[2]]


def is_run(path: Path) -> bool:
    """Whether `path` is a run directory."""
    run = RunDir(path)
    return run.token_file.is_file() and (run.plan_file.is_file() or run.log_file.is_file())


def list_runs(root: Path, now: float) -> list[RunRow]:
    """The runs in the directory `root`, the newest last. `now` is Unix time, from which ages are counted.

    Raises:
        UsageError: `root` is not a directory.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory: give the directory that contains the runs")
    found = (path for path in root.iterdir() if not path.is_symlink() and path.is_dir() and is_run(path))
    return sorted((describe_run(path, now) for path in found), key=lambda row: -row.age_s)


def describe_run(path: Path, now: float) -> RunRow:
    """Describe the run in the directory `path`; its age is counted from `now`."""
    run = RunDir(path)
    state, step = _state(run)
    files = [file for file in path.iterdir() if file.is_file() and file.suffix != ".lock"]
    changed = max((file.stat().st_mtime for file in files), default=now)
    return RunRow(path.name, str(path), state, step, _nbytes(path), max(0.0, now - changed))


def _state(run: RunDir) -> tuple[str, int | None]:
    if run.launched:
        return RUNNING, _step(run)
    if (end := run.end()) is not None:
        return end_state(end), end.get("step")
    if run.done:
        with suppress(OSError, msgspec.DecodeError):
            summary = msgspec.json.decode(run.summary_file.read_bytes(), type=RunSummary)
            return summary.state, summary.steps
    return UNFINISHED, None


def end_state(end: Mapping[str, Any]) -> str:
    """The state of a run without a launcher, from the content of its `ended.json`."""
    if end.get("state") == UNFINISHED:
        return UNFINISHED
    return INTERRUPTED if end.get("code") in (EXIT_INTERRUPTED, EXIT_TERMINATED) else FAILED


def _step(run: RunDir) -> int | None:
    """The step of a running run; None if its coordinator does not answer within a second."""
    if run.coordinator() is None:
        return None
    try:
        with observing(run) as observer:
            return observer.status(timeout_s=_LOOK_S).step
    except TransportError:
        return None


def _nbytes(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with suppress(OSError):  # a running run may remove the file meanwhile
            total += file.lstat().st_size if not file.is_dir() else 0
    return total


def choose(rows: Iterable[RunRow], states: Sequence[str], older_than_s: float | None) -> Iterator[RunRow]:
    """The rows whose state is one of `states` (all rows if empty) and whose age is at least `older_than_s`."""
    for row in rows:
        if (not states or row.state in states) and (older_than_s is None or row.age_s >= older_than_s):
            yield row


def find_run(root: Path, name: str) -> Path:
    """The directory of the run called `name`, which is a name in `root` or a path. Links are followed.

    Raises:
        UsageError: there is no such run.
    """
    path = next((path for path in (root / name, Path(name)) if path.is_dir()), None)
    if path is None:
        raise UsageError(f"there is no run {name} in {root}")
    path = path.resolve()
    if not is_run(path):
        raise UsageError(f"{path} is not a run directory: nothing was removed there")
    return path


def remove_run(path: Path) -> int:
    """Remove a run with its directory, and links beside it that lead nowhere; returns how many bytes the run had.

    Raises:
        UsageError: the run is running, or `path` is not a run directory.
    """
    if not is_run(path):
        raise UsageError(f"{path} is not a run directory: nothing was removed there")
    run = RunDir(path)
    ended = run.done or (run.end() or {}).get("state") == ENDED
    if run.launched or (not ended and is_running(run)):
        raise UsageError(f"{path} is running: end it first (see `paceline status {path}`)")
    with run.launching():  # holds the launcher lock, so that no launcher resumes the run meanwhile
        nbytes = _nbytes(path)
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise UsageError(f"cannot remove {error.filename or path}: {error.strerror}") from None
    for link in path.parent.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)
    return nbytes
