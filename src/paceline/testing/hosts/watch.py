"""Watches a run on hosts: how long it makes no commit, and whether a name lives twice (rule 13)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

from paceline.messages.status import Status
from paceline.testing.host_cluster import HostCluster

_ROLE = "paceline.runtime.role_process"
_PROC = Path("/proc")
_LOOK_S = 0.01
_NAMES_S = 0.2


class RunWatch:
    """A context manager that looks at the processes of `cluster` all the time. `problems` is what it has found.

    While `split` is true, a host is cut off from everybody: its old processes may live beside those that replace them.
    Even then no name may be a member twice.
    """

    def __init__(self, cluster: HostCluster) -> None:
        self.problems: list[str] = []
        self.split = False
        self._cluster = cluster
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look_at_names, daemon=True)

    def __enter__(self) -> RunWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _look_at_names(self) -> None:
        while not self._ends.wait(_NAMES_S):
            if not self.split:
                self._note("lives", twice([name for name, _ in living_roles(self._cluster.folder)]))

    def status(self) -> Status | None:
        """The status that the coordinator reports, with a check of its members; None while none answers."""
        status = self._cluster.status()
        if status is not None:
            self._note("is a member", twice([process.name for process in status.processes]))
        return status

    def _note(self, what: str, names: list[str]) -> None:
        for name in names:
            problem = f"{name} {what} twice"
            if problem not in self.problems:
                self.problems.append(problem)

    def longest_pause(self, seconds: float) -> float:
        """The longest time between two commits, or since the last one, within the next `seconds`."""
        began = last = time.monotonic()
        version, longest = -1, 0.0
        while (now := time.monotonic()) < began + seconds:
            status = self.status()
            now = time.monotonic()
            if status is not None and status.version > version:
                version, last, longest = status.version, now, max(longest, now - last)
            longest = max(longest, now - last)
            time.sleep(_LOOK_S)
        return longest


def twice(names: list[str]) -> list[str]:
    """The names that are there more than once."""
    return sorted(name for name, number in Counter(names).items() if number > 1)


def living_roles(folder: Path) -> list[tuple[str, int]]:
    """The (name, start) of each process of a role that lives, and whose configuration is below `folder`."""
    found = []
    for process in _PROC.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
        except OSError:
            continue  # it has just ended
        if _ROLE in words and (file := _configuration(words[words.index(_ROLE) :], folder)) is not None:
            name, _, start = file.stem.rpartition(".")
            found.append((name, int(start)))
    return found


def _configuration(words: list[str], folder: Path) -> Path | None:
    """The file in the command line of a role, after its parent and its name; None if it is not below `folder`."""
    file = Path(words[3]) if len(words) > 3 else None
    return file if file is not None and file.is_relative_to(folder) else None
